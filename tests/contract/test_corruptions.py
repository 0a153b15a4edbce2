"""What every corruption owes, whatever it does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from allrounder.data.corruptions import CORRUPTIONS, corrupt
from allrounder.data.corruptions.base import SEVERITIES, rng_per_image
from allrounder.rng import Rng
from tests.support.images import clothes, photographs, scenes

NAMES = list(CORRUPTIONS)
UNEVEN = {
    "glass_blur": "one round up to severity 3, two from 4 on, and a blur that hides the rounds in between",
    "elastic_transform": "the published table moves all of the image less as it distorts its parts more",
    "spatter": "water up to severity 3, mud from 4 on",
    "saturate": "paler up to severity 2, stronger colours from 3 on",
}
"""Whose severities do not order the size of the change, and why."""
SLACK = 0.97
"""A severity may change images by that much of the one below, because images are few."""


def far(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> float:
    """One minus the correlation, averaged over images: a fainter image alone is no farther away."""
    pairs = zip(x.reshape(len(x), -1), y.reshape(len(y), -1), strict=True)
    return float(np.mean([1 - np.corrcoef(a, b)[0, 1] for a, b in pairs]))


def test_the_tables_are_those_of_the_papers():
    assert len(CORRUPTIONS) == 19
    assert CORRUPTIONS["gaussian_noise"].constants == (0.04, 0.06, 0.08, 0.09, 0.10)
    assert CORRUPTIONS["shot_noise"].constants == (500, 250, 100, 75, 50)
    assert CORRUPTIONS["jpeg_compression"].constants == (80, 65, 58, 50, 40)
    assert CORRUPTIONS["pixelate"].constants == (0.95, 0.9, 0.85, 0.75, 0.65)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "channels"), [(28, 1), (64, 3), (9, 3)])
def test_shape_and_type_stay(name: str, size: int, channels: int):
    x = scenes(2, size, channels)
    before = x.copy()
    for severity in SEVERITIES:
        y = corrupt(x, name, severity)
        assert y.shape == x.shape and y.dtype == np.uint8 and y.flags.c_contiguous
    assert np.array_equal(x, before), "the given images were changed"


@pytest.mark.parametrize("name", NAMES)
def test_images_may_be_higher_than_wide(name: str):
    x = scenes(2, 40)[:, :, :24]
    assert corrupt(x, name, 5).shape == x.shape


@pytest.mark.parametrize("name", NAMES)
@given(order=st.permutations(range(6)), cut=st.integers(1, 6), severity=st.sampled_from(SEVERITIES))
@settings(max_examples=4)
def test_an_image_does_not_depend_on_those_beside_it(name: str, order: list[int], cut: int, severity: int):
    x = scenes(6)
    whole = corrupt(x, name, severity, rows=range(100, 106))
    some = order[:cut]
    part = corrupt(x[some], name, severity, rows=[100 + number for number in some])
    assert np.array_equal(part, whole[some])


@pytest.mark.parametrize("name", NAMES)
def test_seed_row_and_severity_address_the_chance(name: str):
    x = np.repeat(scenes(1), 3, axis=0)
    first = corrupt(x, name, 3, seed=1)
    assert np.array_equal(first, corrupt(x, name, 3, seed=1))
    other, by_chance = corrupt(x, name, 3, seed=2), not np.array_equal(first[0], first[1])
    assert np.array_equal(first, other) != by_chance
    fixed = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    assert by_chance == (name not in fixed | {"gaussian_blur", "saturate"})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNEVEN])
def test_a_higher_severity_is_farther_away(name: str):
    x = photographs(48)
    steps = [far(x, corrupt(x, name, severity)) for severity in SEVERITIES]
    assert all(high >= SLACK * low for low, high in pairwise(steps)), steps
    assert steps[-1] > 1.2 * steps[0] > 0


@pytest.mark.parametrize("name", NAMES)
def test_all_severities_change_photographs_and_leave_them_recognisable(name: str):
    x = photographs(24)
    changes = [corrupt(x, name, severity) for severity in SEVERITIES]
    for y in changes:
        assert 0.5 < np.abs(y.astype(int) - x).mean() < 70
        assert far(x, y) < 0.6
    assert all(not np.array_equal(a, b) for a, b in pairwise(changes))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNEVEN])
def test_images_of_one_channel_are_changed_alike(name: str):
    x = clothes(40)
    steps = [float(np.abs(corrupt(x, name, severity).astype(int) - x).mean()) for severity in (1, 5)]
    assert 0 < steps[0] < steps[1] < 90


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", [0, 128, 255])
def test_an_even_image_gives_no_nonsense(name: str, level: int):
    x = np.full((2, 32, 32, 3), level, np.uint8)
    y = corrupt(x, name, 5)
    still = {"defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform"}
    if name in still | {"pixelate", "gaussian_blur"}:
        assert np.abs(y.astype(int) - x).max() <= 1


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_there_is_no_other_severity(severity: int):
    with pytest.raises(ValueError, match=f"severity: got {severity}, expected 1 to 5"):
        corrupt(scenes(1), "fog", severity)


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match=r'got \'gausian_noise\'.*did you mean "gaussian_noise"'):
        corrupt(scenes(1), "gausian_noise", 1)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 32, 32, 3), np.float32),
        np.zeros((2, 3, 32, 32), np.uint8),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((2, 4, 32, 3), np.uint8),
    ],
    ids=["floats", "channels first", "one image", "too small"],
)
def test_other_images_are_refused(x: NDArray[np.uint8]):
    with pytest.raises(ValueError, match=r"images: got .* expected uint8 of shape \(n, h, w, 1 or 3\)"):
        rng_per_image(Rng(0), x, None)


def test_every_image_has_a_row():
    with pytest.raises(ValueError, match="rows: got 1 for 2 images"):
        corrupt(scenes(2), "fog", 1, rows=[0])


def test_no_images_are_no_images():
    assert corrupt(scenes(1)[:0], "snow", 1).shape == (0, 32, 32, 3)
