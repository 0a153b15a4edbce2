from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.errors import InputError
from allrounder.report.calibration import Reliability, reliability
from tests.reference import calibration as reference


def measure(correct: list[bool], confidence: list[float], bins: int = 15) -> Reliability:
    return reliability(np.array(correct, dtype=bool), np.array(confidence, dtype=np.float64), bins)


def test_bins_without_images_are_left_out():
    diagram = measure([True, False, True, True], [0.15, 0.15, 0.85, 0.95], bins=5)
    assert diagram.confidence == pytest.approx([0.15, 0.9])
    assert diagram.accuracy.tolist() == [0.5, 1.0]
    assert diagram.count.tolist() == [2, 2] and diagram.bins == 5
    assert diagram.ece == pytest.approx((2 * 0.35 + 2 * 0.1) / 4)


def test_a_network_that_is_always_sure_errs_by_its_error_rate():
    diagram = measure([True, True, True, False], [1.0] * 4)
    assert diagram.count.tolist() == [4] and diagram.confidence.tolist() == [1.0]
    assert diagram.ece == 0.25
    assert measure([True, True], [1.0, 1.0]).ece == 0


@pytest.mark.parametrize("bins", [1, 3, 10, 15])
def test_a_confidence_on_an_edge_is_in_the_lower_bin(bins: int):
    edges = [m / bins for m in range(1, bins + 1)]
    assert measure([True] * bins, edges, bins).count.tolist() == [1] * bins
    above = [math.nextafter(edge, 2) for edge in edges[:-1]]
    assert measure([True] * len(above), above, bins).count.tolist() == [1] * len(above)
    assert measure([True, True], [0.0, 1 / bins], bins).count.tolist() == [2], "0 is in the first bin"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), min_size=1, max_size=40), st.integers(1, 20))
def test_bins_and_error_are_those_of_one_image_at_a_time(images: list[tuple[bool, int]], bins: int):
    correct, confidence = (
        [is_correct for is_correct, _ in images],
        [sixtieths / 60 for _, sixtieths in images],
    )
    diagram = measure(correct, confidence, bins)
    expected = reference.bins_of(correct, confidence, bins)
    got = zip(diagram.confidence, diagram.accuracy, diagram.count, strict=True)
    for numbers, twin in zip(got, expected, strict=True):
        assert numbers == pytest.approx(twin)
    assert diagram.ece == pytest.approx(reference.expected_calibration_error(correct, confidence, bins))


def test_no_image_has_no_error():
    diagram = measure([], [])
    assert diagram.count.size == 0 and math.isnan(diagram.ece)


@pytest.mark.parametrize(
    ("confidence", "bins"),
    [([1.1, 0.5], 15), ([-0.1, 0.5], 15), ([math.nan, 0.5], 15), ([0.5], 15), ([1, 1], 0)],
)
def test_anything_but_one_probability_per_image_is_refused(confidence: list[float], bins: int):
    with pytest.raises(InputError, match=r"reliability: got .*, expected"):
        measure([True, False], confidence, bins)
