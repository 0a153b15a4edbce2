from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from allrounder.errors import InputError
from allrounder.report.gallery import (
    MIN_SIDE,
    GalleryItem,
    GalleryView,
    Pixels,
    Prediction,
    amplify_perturbation,
    overlay_map,
    to_data_uri,
)

DRAWS = np.random.default_rng(0)


def decode(uri: str) -> np.ndarray:
    start, _, content = uri.partition(",")
    assert start == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def pixels(height: int, width: int, channels: int) -> Pixels:
    return DRAWS.integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_has_the_pixels_of_the_picture(channels: int):
    picture = pixels(70, 90, channels)
    found = decode(to_data_uri(picture))
    assert np.array_equal(found, picture[:, :, 0] if channels == 1 else picture)
    assert to_data_uri(picture) == to_data_uri(picture.copy()), "equal pictures give equal text"


def test_every_pixel_of_a_small_picture_becomes_a_square():
    picture = pixels(28, 30, 3)
    found = decode(to_data_uri(picture))
    assert found.shape == (84, 90, 3) and min(found.shape[:2]) >= MIN_SIDE
    assert np.array_equal(found[1::3, 2::3], picture) and np.array_equal(found[::3, ::3], picture)
    assert decode(to_data_uri(picture, min_side=1)).shape == (28, 30, 3)


@pytest.mark.parametrize(
    "picture", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_what_is_no_picture_is_refused(picture: np.ndarray):
    with pytest.raises(
        InputError, match=r"picture: got .* expected uint8 of shape \(height, width, 1 or 3\)"
    ):
        to_data_uri(picture)


def test_a_perturbation_is_centred_at_grey():
    perturbation = np.array([[[0.0], [0.1], [-0.1], [0.3], [-0.3]]])
    assert amplify_perturbation(perturbation, 2).ravel().tolist() == [128, 178, 76, 255, 0]


def lightness(color: np.ndarray) -> float:
    """CIE lightness, 0 to 100."""
    linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * np.cbrt(luminance) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_the_lightness_of_maps_rises_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allrounder.report.gallery.MAP_OPACITY", 1.0)
    ramp = np.linspace(0, 1, 17)[None]
    colors = overlay_map(np.zeros((1, 17, 1), np.uint8), ramp)[0]
    steps = np.diff([lightness(color / 255) for color in colors])
    assert (steps > 2).all() and steps.max() < 3 * steps.min()
    assert colors[0].tolist() == [0x44, 0x01, 0x54] and colors[-1].tolist() == [0xFD, 0xE7, 0x25]


def test_a_map_is_laid_over_the_grey_image_and_clipped():
    image = np.array([[[30, 60, 90], [30, 60, 90]]], np.uint8)
    shown = overlay_map(image, np.array([[-0.05, 1.05]]))
    assert shown[0, 0].tolist() == np.rint(0.6 * np.array([0x44, 0x01, 0x54]) + 0.4 * 60).tolist()
    assert shown[0, 1].tolist() == np.rint(0.6 * np.array([0xFD, 0xE7, 0x25]) + 0.4 * 60).tolist()
    with pytest.raises(InputError, match="map: got the shape"):
        overlay_map(image, np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("sizes", "factor"), [((0.1, 0.05), 5), ((8 / 255, 8 / 255), 10), ((0.9, 0.1), 1), ((0.0, 0.0), 500)]
)
def test_both_perturbations_are_amplified_by_one_factor(sizes: tuple[float, float], factor: int):
    image = np.zeros((4, 4, 1), np.uint8)
    sure = Prediction("cat", 0.98765, True)
    first, second = (
        GalleryView("row", sure, None, image, np.full((4, 4, 1), -size), sure, None) for size in sizes
    )
    assert GalleryItem(3, 0, "cat", image, "pgd-20", "Linf:0.1", "", (first, second)).factor == factor
    assert str(sure) == "cat (98.8%)"
