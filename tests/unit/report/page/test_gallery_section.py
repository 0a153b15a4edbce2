"""The pictures of the gallery and what is written below them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from allrounder.report.entry import Results
from allrounder.report.gallery import Gallery, GalleryItem, GalleryView, Prediction
from allrounder.report.page.gallery_section import build_cards
from allrounder.report.page.page import render_page
from tests.support.pages import parse_page

HOSTILE = '"><script>alert(1)</script>'


def view(row: str, has_map: bool = True) -> GalleryView:
    image = np.full((8, 8, 3), 100, np.uint8)
    heat = np.linspace(0, 1, 64).reshape(8, 8) if has_map else None
    right, wrong = Prediction("bag", 0.9, True), Prediction("boot", 0.75, False)
    return GalleryView(row, right, heat, image, np.full((8, 8, 3), 0.01), wrong, heat)


def make_item(first: str, second: str) -> GalleryItem:
    """An image with the views of two rows, the second one without maps."""
    image = np.full((8, 8, 3), 120, np.uint8)
    views = view(first), view(second, has_map=False)
    return GalleryItem(7, 0, "bag", image, "pgd-20@Linf:8/255", "Linf:8/255", f"{second} is right", views)


@pytest.fixture
def item() -> GalleryItem:
    return make_item("NT", "AT")


def test_a_card_shows_natural_adversarial_maps_and_perturbation(item: GalleryItem):
    (card,) = build_cards(Gallery((item,), "about"))
    assert card.title == "AT is right" and "Image 7" in card.about and "pgd-20@Linf:8/255" in card.about
    captions = {row.row: [picture.caption for picture in row.pictures] for row in card.rows}
    assert captions == {
        "NT": ["natural, map", "adversarial", "adversarial, map", "perturbation, times 50"],
        "AT": ["natural", "adversarial", "perturbation, times 50"],
    }
    first, second = card.rows[0].pictures[:2]
    assert (first.verdict, first.is_correct) == ("bag (90.0%)", True)
    assert (second.verdict, second.is_correct) == ("boot (75.0%)", False)


def test_pictures_are_part_of_the_page_and_have_texts(item: GalleryItem):
    page = parse_page(render_page(Results(()), gallery=Gallery((item,), "How it was chosen.")))
    section = page.find("section", id="gallery")
    assert "How it was chosen." in section.text
    pictures = section.find_all("img")
    assert len(pictures) == 8
    assert all(picture.attributes["src"].startswith("data:image/png;base64,") for picture in pictures)
    assert all(picture.attributes["alt"] for picture in pictures)
    rows = [
        block.attributes["data-row"] for block in section.find_all("div") if "data-row" in block.attributes
    ]
    assert rows == ["NT", "AT"] and "boot (75.0%), wrong" in section.text


def test_names_in_a_gallery_are_text(item: GalleryItem):
    hostile = replace(item, kind=HOSTILE, class_name=HOSTILE, views=(view(HOSTILE), view("AT")))
    section = parse_page(render_page(Results(()), gallery=Gallery((hostile,), HOSTILE))).find(
        "section", id="gallery"
    )
    assert not section.find_all("script") and HOSTILE in section.text
    assert section.find_all("div", data_row=HOSTILE)


def test_without_a_gallery_there_is_no_section():
    page = parse_page(render_page(Results(())))
    assert not page.find_all("section", id="gallery")
    assert "#gallery" not in [link.attributes["href"] for link in page.find_all("a")]
