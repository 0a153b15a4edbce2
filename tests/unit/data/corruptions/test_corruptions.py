"""Corruptions equal slow references and other libraries, and have the published constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage as scipy_ndimage

from allrounder.data.corruptions import CORRUPTIONS, corrupt
from allrounder.data.corruptions.base import to_float, uniform
from allrounder.data.corruptions.digital import elastic_transform
from allrounder.data.corruptions.filters import (
    clipped_zoom,
    disk,
    gaussian_filter,
    motion_filter,
    sample_bilinear,
)
from allrounder.data.corruptions.spatter import canny_edges
from allrounder.data.corruptions.weather import frost_textures, plasma_fractal
from allrounder.rng import Rng
from tests.reference import corruptions as reference
from tests.support.images import photographs, scenes

ndimage: Any = scipy_ndimage


def max_difference(a: object, b: object) -> int:
    return int(np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int)).max())


def make_rng(name: str, severity: int, count: int) -> Rng:
    return Rng(0).fold_in("corruption", name, severity).per_example(torch.arange(count))


@pytest.mark.parametrize("severity", [1, 5])
def test_corruptions_of_single_images_equal_reference(severity: int):
    x = scenes(3)
    for name, expected, tolerance in (
        ("contrast", lambda image, c: reference.contrast(image, c), 1),
        ("brightness", lambda image, c: reference.brightness(image, c), 1),
        ("saturate", lambda image, c: reference.saturate(image, *c), 1),
        ("pixelate", lambda image, c: reference.pixelate(image, c), 0),
        ("jpeg_compression", lambda image, c: reference.jpeg(image, c), 0),
    ):
        constants = CORRUPTIONS[name].constants[severity - 1]
        for image, y in zip(x, corrupt(x, name, severity), strict=True):
            assert max_difference(y, expected(image, constants)) <= tolerance, name


def test_grey_and_black_pixels_change_as_in_hsv():
    x = np.zeros((1, 8, 8, 3), np.uint8)
    x[:, :4] = 100
    assert corrupt(x, "brightness", 5)[0, -1, -1].tolist() == [76, 76, 76]
    assert corrupt(x, "saturate", 5)[0, 0, 0].tolist() == [100, 80, 80]
    assert corrupt(x, "saturate", 5)[0, -1, -1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("name", "constant"), [("gaussian_noise", 0.10), ("speckle_noise", 0.2)])
def test_noise_has_requested_scale(name: str, constant: float):
    x = np.full((20, 32, 32, 3), 128, np.uint8)
    y = corrupt(x, name, 5) / 255
    level = 128 / 255
    expected = constant * (1 if name == "gaussian_noise" else level)
    assert abs(y.std() - expected) < 0.02 * expected
    # Rounding down takes half a level on average.
    assert abs(y.mean() - level + 0.5 / 255) < 4 * expected / np.sqrt(y.size)


def test_shot_noise_counts_photons():
    level, photons = 102 / 255, 50
    y = corrupt(np.full((20, 32, 32, 3), 102, np.uint8), "shot_noise", 5)
    counts = y / 255 * photons
    assert abs(counts.var() / (level * photons) - 1) < 0.03
    assert abs(counts - np.ceil(counts - 1e-9)).max() < photons / 255 + 1e-6
    assert (corrupt(np.zeros((1, 8, 8, 1), np.uint8), "shot_noise", 5) == 0).all()


def test_impulse_noise_is_equally_black_and_white():
    y = corrupt(np.full((20, 32, 32, 3), 100, np.uint8), "impulse_noise", 5)
    black, white = ((y == level).mean() for level in (0, 255))
    assert set(np.unique(y)) == {0, 100, 255}
    assert abs(black - 0.035) < 0.003 and abs(white - 0.035) < 0.003


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 6.4])
@pytest.mark.parametrize(("edge", "mode"), [("edge", "nearest"), ("symmetric", "reflect")])
def test_gaussian_filter_equals_scipy(sigma: float, edge: str, mode: str):
    x = to_float(scenes(2))
    expected = ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode=mode, truncate=3)
    assert np.allclose(gaussian_filter(x, sigma, 3.0, edge), expected, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.06, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("size", [28, 32, 64])
def test_clipped_zoom_equals_scipy(factor: float, size: int):
    x = to_float(scenes(2, size))
    cut = int(np.ceil(size / factor))
    first = (size - cut) // 2
    large = ndimage.zoom(x[:, first : first + cut, first : first + cut], (1, factor, factor, 1), order=1)
    trim = (large.shape[1] - size) // 2
    assert np.allclose(clipped_zoom(x, factor), large[:, trim : trim + size, trim : trim + size], atol=1e-12)


@pytest.mark.parametrize(
    ("edge", "mode"), [("reflect", "mirror"), ("symmetric", "reflect"), ("black", "constant")]
)
def test_sample_bilinear_equals_scipy(edge: str, mode: str):
    x, rng = to_float(scenes(1, 16)), np.random.default_rng(1)
    inside = edge == "black"
    rows, columns = rng.uniform(0 if inside else -12, 15 if inside else 28, (2, 1, 16, 16))
    expected = np.stack(
        [ndimage.map_coordinates(x[0, ..., c], [rows[0], columns[0]], order=1, mode=mode) for c in range(3)],
        -1,
    )
    assert np.allclose(sample_bilinear(x, rows, columns, edge)[0], expected, atol=1e-12)  # type: ignore[arg-type]


def test_samples_beyond_a_black_edge_are_zero():
    x = np.ones((1, 8, 8, 1))
    places = np.broadcast_to(np.arange(8.0) + 3, (8, 8))
    y = sample_bilinear(x, np.broadcast_to(np.arange(8.0)[:, None], (8, 8)), places, "black")
    assert y[0, 0, :, 0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("angle", [-45.0, -30.5, 0.0, 90.0, -135.0])
def test_motion_filter_equals_reference(angle: float):
    x = to_float(scenes(2, 16))
    blurred = motion_filter(x, 6.0, 1.5, [angle, 10.0])
    assert np.allclose(blurred[0], reference.motion(x[0], 6, 1.5, angle), atol=1e-12)
    assert not np.allclose(blurred[1], reference.motion(x[1], 6, 1.5, angle), atol=1e-3) or angle == 10.0


def test_glass_blur_equals_reference():
    x = scenes(2)
    rng = make_rng("glass_blur", 1, 2).fold_in("move", 0)
    up, left = np.moveaxis(uniform(rng, (2, 32, 32, 2)) < 0.5, -1, 0)
    expected = [reference.glass(image, up[i], left[i]) for i, image in enumerate(x)]
    assert np.array_equal(corrupt(x, "glass_blur", 1), expected)  # its blur is too small to see


def test_disk_is_symmetric_and_sums_to_one():
    for radius, alias in CORRUPTIONS["defocus_blur"].constants:
        kernel = disk(radius, alias)
        assert kernel.sum() == pytest.approx(1)
        assert np.allclose(kernel, kernel.T) and np.allclose(kernel, kernel[::-1])
    assert disk(1.0, 0.1)[3, 2:5].tolist() == pytest.approx([0.2, 0.2, 0.2])


def test_plasma_fractal_fills_unit_range_and_is_tileable():
    maps = plasma_fractal(make_rng("fog", 1, 4), 4, 32, 2.0)
    assert maps.min(axis=(1, 2)).tolist() == [0] * 4 and maps.max(axis=(1, 2)).tolist() == [1] * 4
    inside = np.abs(np.diff(maps, axis=1)).mean()
    assert np.abs(maps[:, 0] - maps[:, -1]).mean() < 3 * inside
    rough, smooth = (
        np.abs(np.diff(plasma_fractal(make_rng("fog", 1, 4), 4, 64, d), axis=1)).mean() for d in (1.5, 3.0)
    )
    assert smooth < rough


def test_fog_keeps_black_and_frost_does_not():
    x = np.zeros((2, 32, 32, 3), np.uint8)
    assert (corrupt(x, "fog", 5) == 0).all()
    assert corrupt(x, "frost", 1).mean() > 10
    textures = frost_textures(0)
    assert 0.4 < textures.mean() < 0.6 and textures.min() >= 0 and textures.max() <= 1


def test_elastic_transform_without_moves_keeps_the_image():
    x = scenes(3, 28)
    assert max_difference(elastic_transform(x, (0.0, 0.0, 0.0), make_rng("elastic_transform", 1, 3)), x) <= 1
    moved = elastic_transform(x, (0.0, 0.0, 0.08), make_rng("elastic_transform", 1, 3))
    assert max_difference(moved, x) > 50


def test_elastic_transform_moves_its_three_points():
    rng = make_rng("elastic_transform", 1, 1)
    x = np.zeros((1, 32, 32, 1), np.uint8)
    x[0, 26, 26] = x[0, 6, 6] = x[0, 6, 26] = 255
    shift = uniform(rng.fold_in("corners"), (1, 3, 2), -2.56, 2.56)[0]
    y = elastic_transform(x, (0.0, 0.0, 0.08), rng)[0, ..., 0].astype(float)
    for (column, row), (right, down) in zip(((26, 26), (26, 6), (6, 6)), shift, strict=True):
        top, left = round(row + down) - 3, round(column + right) - 3
        spot = y[max(top, 0) : top + 7, max(left, 0) : left + 7]
        centre = ndimage.center_of_mass(spot)
        assert abs(centre[0] + max(top, 0) - row - down) < 0.3
        assert abs(centre[1] + max(left, 0) - column - right) < 0.3


def test_canny_edges_are_the_rim_of_a_square():
    image = np.zeros((2, 16, 16))
    image[0, 4:12, 4:12] = 200
    edges = canny_edges(image)
    assert not edges[1].any()
    assert edges[0, 6:10, 3:5].any(1).all() and edges[0, 6:10, 11:13].any(1).all()
    assert not edges[0, 6:10, 6:10].any() and not edges[0, :2].any()


def test_water_brightens_and_mud_is_brown():
    x = photographs(20)
    water, mud = corrupt(x, "spatter", 3), corrupt(x, "spatter", 5)
    assert (water >= x).all() and (water > x).any()
    covered = np.abs(mud.astype(int) - x).max(-1) > 60
    assert covered.any()
    assert np.abs(mud[covered].mean(0) - (63, 42, 20)).max() < 25


def test_images_get_independent_random_numbers():
    x = np.repeat(scenes(1), 40, axis=0)
    y = corrupt(x, "motion_blur", 5).reshape(40, -1)
    assert len(np.unique(y, axis=0)) > 20  # whole pixels leave few lines
    z = corrupt(x, "frost", 5).reshape(40, -1)
    assert len(np.unique(z, axis=0)) == 40


PUBLISHED: dict[str, list[object]] = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": [1.06, 1.11, 1.16, 1.21, 1.26],
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "elastic_transform": [
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
    "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
    "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
}
"""For CIFAR, severity by severity."""


def test_constants_equal_published_ones():
    assert {name: list(corruption.constants) for name, corruption in CORRUPTIONS.items()} == PUBLISHED


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_zoom_blur_equals_the_published_computation(severity: int):
    """With scipy, and with the published factors: at severity 5 the last one enlarges 26 rows to 33."""
    x = scenes(2)
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1], 0.01)
    for image, blurred in zip(x / 255, corrupt(x, "zoom_blur", severity), strict=True):
        total = image.copy()
        for factor in factors:
            cropped = int(np.ceil(32 / factor))
            first = (32 - cropped) // 2
            part = image[first : first + cropped, first : first + cropped]
            large = ndimage.zoom(part, (factor, factor, 1), order=1)
            trim = (len(large) - 32) // 2
            total += large[trim : trim + 32, trim : trim + 32]
        expected = np.clip(total / (len(factors) + 1), 0, 1) * 255
        # A sum that is nearly a whole number may be rounded down to it or below it.
        assert (np.floor(expected - 1e-6) <= blurred).all() and (blurred <= expected + 1e-6).all()
