"""The gallery on the page: images, perturbations and maps as pictures with captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from allrounder.report.gallery import (
    Gallery,
    GalleryItem,
    GalleryView,
    Prediction,
    amplify_perturbation,
    overlay_map,
    to_data_uri,
)


@final
@dataclass(frozen=True)
class Picture:
    """A picture, with a caption that also describes it to readers who cannot see it."""

    uri: str
    caption: str
    verdict: str = ""
    """What the network predicts for it."""
    is_correct: bool = True


@final
@dataclass(frozen=True)
class RowPictures:
    """What one row makes of an image."""

    row: str
    pictures: tuple[Picture, ...]


@final
@dataclass(frozen=True)
class GalleryCard:
    """One image, with the pictures of both rows."""

    title: str
    about: str
    image: Picture
    rows: tuple[RowPictures, ...]


def build_cards(gallery: Gallery) -> list[GalleryCard]:
    """Return a card for every image of a gallery."""
    return [_build_card(item) for item in gallery.items]


def _build_card(item: GalleryItem) -> GalleryCard:
    return GalleryCard(
        item.kind,
        f"Image {item.position} of the test set, class {item.class_name}. Attack: {item.attack}.",
        Picture(to_data_uri(item.image), f"natural image, {item.class_name}"),
        tuple(RowPictures(view.row, tuple(_list_pictures(item, view))) for view in item.views),
    )


def _list_pictures(item: GalleryItem, view: GalleryView) -> list[Picture]:
    pictures: list[Picture] = []
    if view.natural_map is not None:
        pictures.append(
            _judge(to_data_uri(overlay_map(item.image, view.natural_map)), "natural, map", view.natural)
        )
    else:
        pictures.append(_judge(to_data_uri(item.image), "natural", view.natural))
    pictures.append(_judge(to_data_uri(view.adversarial_image), "adversarial", view.adversarial))
    if view.adversarial_map is not None:
        overlay = overlay_map(view.adversarial_image, view.adversarial_map)
        pictures.append(Picture(to_data_uri(overlay), "adversarial, map"))
    amplified = amplify_perturbation(view.perturbation, item.factor)
    pictures.append(Picture(to_data_uri(amplified), f"perturbation, times {item.factor}"))
    return pictures


def _judge(uri: str, caption: str, prediction: Prediction) -> Picture:
    return Picture(uri, caption, str(prediction), prediction.is_correct)
