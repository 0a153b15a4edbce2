"""Perturbation sequences: frames that follow the stated protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage as scipy_ndimage

from allrounder.data.corruptions.perturbations import PERTURBATIONS, perturb_sequence
from tests.support.images import clothes, scenes

NAMES = list(PERTURBATIONS)
MIDDLE = {"brightness": 15, "translate": 7, "rotate": 15, "tilt": 15, "scale": 15, "shear": 15}
"""The frames that are the image itself, or nearly."""
RANDOM = ("gaussian_noise", "shot_noise", "speckle_noise", "snow", "spatter")


def mean_difference(a: object, b: object) -> float:
    return float(np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int)).mean())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (28, 1), (33, 3)])
def test_frames_have_expected_shape_and_dtype(name: str, size: int, channels: int):
    x = scenes(2, size, channels)
    y = perturb_sequence(x, name)
    assert y.dtype == np.uint8
    assert y.shape == (2, {"motion_blur": 21, "translate": 16}.get(name, 31), size, size, channels)


@pytest.mark.parametrize("name", NAMES)
def test_frames_do_not_depend_on_other_images(name: str):
    x = scenes(5)
    complete = perturb_sequence(x, name, rows=range(10, 15))
    for some in ([3], [4, 0], [2, 1, 0, 3, 4]):
        part = perturb_sequence(x[some], name, rows=[10 + number for number in some])
        assert np.array_equal(part, complete[some])
    other = perturb_sequence(x, name, rows=range(10, 15), seed=1)
    assert np.array_equal(other, complete) == (name not in RANDOM)


@pytest.mark.parametrize("name", NAMES)
def test_frames_change_gradually(name: str):
    y = perturb_sequence(clothes(10), name).astype(int)
    steps = np.abs(np.diff(y, axis=1)).mean(axis=(0, 2, 3, 4))
    assert (steps > 0).all()
    assert steps.max() < 30
    ends = np.abs(y[:, -1] - y[:, 0]).mean()
    if name not in ("gaussian_noise", "shot_noise", "speckle_noise", "motion_blur"):
        assert ends > 2 * steps.mean()


@pytest.mark.parametrize(("name", "frame"), MIDDLE.items())
def test_middle_frame_is_the_image(name: str, frame: int):
    x = scenes(2)
    assert mean_difference(perturb_sequence(x, name)[:, frame], x) < 1.5


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "speckle_noise", "zoom_blur"])
def test_first_frame_is_the_image(name: str):
    x = scenes(2)
    assert np.array_equal(perturb_sequence(x, name)[:, 0], x)


def test_noise_does_not_accumulate():
    x = np.full((4, 32, 32, 3), 128, np.uint8)
    y = perturb_sequence(x, "gaussian_noise")[:, 1:] / 255
    scales = y.std(axis=(0, 2, 3, 4))
    assert np.abs(scales / 0.02 - 1).max() < 0.06
    assert not np.array_equal(y[:, 0], y[:, 1])


def test_speckle_noise_is_in_proportion_to_the_pixel():
    x = np.full((4, 32, 32, 2), 0, np.uint8).repeat(2, -1)[..., :3]
    x[..., 1], x[..., 2] = 100, 200
    y = perturb_sequence(x, "speckle_noise")[:, 1:] / 255
    scales = y.std(axis=(0, 1, 2, 3))
    assert scales[0] == 0
    assert np.abs(scales[1:] / (0.05 * np.array([100, 200]) / 255) - 1).max() < 0.06


def test_gaussian_blur_equals_scipy():
    x = scenes(1)
    y = perturb_sequence(x, "gaussian_blur")[0]
    for frame in (0, 15, 30):
        sigma = 0.3 + 0.015 * frame
        blurred = scipy_ndimage.gaussian_filter(x[0] / 255, (sigma, sigma, 0), mode="nearest", truncate=7.0)
        assert np.abs(y[frame] - np.floor(255 * blurred)).max() <= 1


def test_drops_run_down_by_four_fifths_of_a_pixel_per_frame():
    x = np.zeros((8, 32, 32, 3), np.uint8)
    y = perturb_sequence(x, "spatter").astype(float).mean(axis=(2, 4))  # by image, frame and column
    assert y.any(axis=(1, 2)).all()
    rows = np.arange(32)
    light = perturb_sequence(x, "spatter")[..., 1].astype(float).sum(axis=3)  # by image, frame and row
    top = [(light[:, frame, :8].sum() / light[:, frame].sum()) for frame in (0, 20)]
    assert top[0] > 0.1 and top[1] < 0.02, "no drops follow from above"
    centre = [(light[:, frame] * rows).sum() / light[:, frame].sum() for frame in (0, 5)]
    assert 1 < centre[1] - centre[0] < 5


def test_shearing_equals_pillow_with_the_matrix_of_its_time():
    """x' = x - sin(a) y and y' = cos(a) y about the centre; Pillow wants the inverse."""
    x = scenes(1)
    y = perturb_sequence(x, "shear")[0]
    for frame in (0, 9, 30):
        angle = math.radians(frame - 15)
        a, b = math.tan(angle), 1 / math.cos(angle)
        matrix = (1.0, a, -16 * a, 0.0, b, 16 - 16 * b)
        image = Image.fromarray(x[0])
        sheared = image.transform((32, 32), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        assert mean_difference(y[frame], sheared) < 1


def test_translation_is_exact():
    x = scenes(2)
    y = perturb_sequence(x, "translate")
    assert np.array_equal(y[:, 0, :, :-7], x[:, :, 7:]) and not y[:, 0, :, -7:].any()
    assert np.array_equal(y[:, 15, :, 8:], x[:, :, :-8]) and not y[:, 15, :, :8].any()


def test_rotation_equals_pillow():
    x = scenes(1)
    y = perturb_sequence(x, "rotate")[0]
    for frame in (0, 9, 30):
        turned = Image.fromarray(x[0]).rotate(-(frame - 15), Image.Resampling.BILINEAR)
        assert mean_difference(y[frame], turned) < 1


def test_scaling_keeps_the_centre_and_adds_black_border():
    x = np.full((1, 32, 32, 1), 200, np.uint8)
    y = perturb_sequence(x, "scale")[0, ..., 0]
    assert y[0, 16, 16] == 200 and y[0, 0, 0] == 0
    assert abs((y[0] > 0).mean() - 0.7**2) < 0.03
    assert (y[30] == 200).all()


def test_tilted_image_is_larger_where_nearer():
    x = np.zeros((1, 33, 33, 1), np.uint8)
    x[0, :, 8] = x[0, :, 24] = 255
    shown = perturb_sequence(x, "tilt")[0, ..., 0].astype(float)
    lines = shown[30, 16]
    left, right = (
        np.average(np.arange(33)[half], weights=lines[half]) for half in (slice(0, 16), slice(17, 33))
    )
    assert left < 8.2 and abs((16 - left) - (right - 16)) > 0.5
    mirrored = shown[0, 16, ::-1]
    assert np.abs(lines - mirrored).mean() < 20


def test_unknown_name_gets_a_suggestion():
    with pytest.raises(ValueError, match='did you mean "rotate"'):
        perturb_sequence(scenes(1), "rotat")
