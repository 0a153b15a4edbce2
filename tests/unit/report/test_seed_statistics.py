"""Statistics over seeds and images, against known values and simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.report.seed_statistics import (
    SeedComparison,
    SeedsByImages,
    VarianceTerm,
    add_variances,
    seed_interval,
    t_p_value,
    t_quantile,
)
from allrounder.report.statistics import McNemar, wilson_interval


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (30, 2.0423), (1e6, 1.95996)],
)
def test_quantiles_of_the_t_distribution_are_those_of_the_tables(degrees: float, quantile: float):
    assert t_quantile(float(degrees)) == pytest.approx(quantile, abs=5e-5)
    assert t_p_value(quantile, float(degrees)) == pytest.approx(0.05, abs=2e-5)


@given(st.floats(-1e4, 1e4))
def test_the_t_distribution_with_one_and_two_degrees_has_closed_forms(t: float):
    assert t_p_value(t, 1.0) == pytest.approx(1 - 2 / math.pi * math.atan(abs(t)), abs=1e-7)
    assert t_p_value(t, 2.0) == pytest.approx(1 - abs(t) / math.sqrt(2 + t * t), abs=1e-7)


def test_degrees_of_freedom_are_those_of_the_variance_that_dominates():
    seeds, images = VarianceTerm(1.0, 2.0), VarianceTerm(1.0, 999.0)
    assert add_variances([seeds, VarianceTerm(0.0, 999.0)]).degrees == 2
    assert add_variances([VarianceTerm(0.0, 2.0), images]).degrees == pytest.approx(999)
    assert add_variances([seeds, images]).degrees == pytest.approx(4 / (1 / 2 + 1 / 999))
    assert add_variances([VarianceTerm(0.0, 2.0)]).degrees == math.inf


def rows(*correct: int, images: int = 1000) -> SeedsByImages:
    """One row for each seed: the first images are correct."""
    return np.stack([(np.arange(images) < count).astype(np.float64) for count in correct])


def test_equal_trainings_give_the_test_over_images():
    # Each seed is a copy: nothing but the images varies, and three seeds are not three times the images.
    alone = McNemar(400, 40, 20, 540)
    row, reference = np.zeros(1000), np.zeros(1000)
    row[:440] = 1
    reference[40:460] = 1
    for seeds in (2, 3, 10):
        copies = SeedComparison(np.tile(row, (seeds, 1)), np.tile(reference, (seeds, 1)))
        assert copies.difference == pytest.approx(alone.difference)
        assert copies.p_value == pytest.approx(alone.p_value, rel=0.25)
    pooled = McNemar(1200, 120, 60, 1620)
    assert pooled.p_value < 1e-4 < 0.01 < copies.p_value


def test_trainings_that_vary_more_than_the_methods_are_no_difference():
    # 3 points on average, but each method varies by more between its own seeds.
    varying = SeedComparison(rows(560, 500), rows(520, 480))
    assert varying.difference == pytest.approx(0.03) and varying.p_value > 0.2
    steady = SeedComparison(rows(530, 531), rows(500, 501))
    assert steady.difference == pytest.approx(0.03) and steady.p_value < 1e-6


def test_a_few_images_in_one_direction_are_as_convincing_as_to_mcnemar():
    five = SeedComparison(rows(105, 105, images=200), rows(100, 100, images=200))
    assert five.p_value == pytest.approx(McNemar(100, 5, 0, 95).p_value, rel=0.1) and five.p_value > 0.05
    same = SeedComparison(rows(100, 100), rows(100, 100))
    assert same.p_value == 1.0


def test_exchanging_the_rows_changes_the_sign_only():
    one, other = rows(530, 510, 520), rows(500, 490, 512)
    there, back = SeedComparison(one, other), SeedComparison(other, one)
    assert there.p_value == back.p_value and there.difference == -back.difference


@pytest.mark.parametrize("seeds", [2, 3])
def test_the_level_holds_where_the_pooled_test_fails(seeds: int):
    rng = np.random.default_rng(seeds)
    ours, pooled = [], []
    for _ in range(300):
        difficulty = rng.normal(0, 1.5, 300)
        noise = [rng.normal(0, 0.15, (seeds, 1)) + rng.normal(0, 0.4, (seeds, 300)) for _ in range(2)]
        row, reference = ((difficulty + part > 0).astype(np.float64) for part in noise)
        ours.append(SeedComparison(row, reference).p_value < 0.05)
        counts = int((row > reference).sum()), int((row < reference).sum())
        pooled.append(McNemar(0, *counts, 0).p_value < 0.05)
    assert np.mean(ours) < 0.1 and np.mean(pooled) > 0.3


def test_the_interval_covers_images_and_seeds():
    same = rows(500, 500, 500)
    low, high = seed_interval(same)
    assert (low, high) == pytest.approx(wilson_interval(0.5, 1000), abs=1e-3)
    # Two seeds that vary by five points say little about the mean; five seeds say more.
    two, five = seed_interval(rows(500, 550)), seed_interval(rows(500, 510, 525, 540, 550))
    assert two[1] - two[0] > 0.2 > 0.1 > five[1] - five[0] > 0.05
    for bounds in (two, five):
        assert 0 <= bounds[0] < 0.525 < bounds[1] <= 1


def test_the_interval_of_none_and_all_is_that_of_images():
    assert seed_interval(rows(0, 0)) == wilson_interval(0.0, 1000)
    assert seed_interval(rows(1000, 1000)) == wilson_interval(1.0, 1000)


def test_an_interval_of_one_image_or_without_variance_is_wilsons():
    assert seed_interval(np.array([[1.0], [1.0]])) == wilson_interval(1.0, 1)
    means = np.full((3, 50), (1.0 + 1.0 + 0.0) / 3)  # their variance is rounding
    low, high = seed_interval(means)
    assert (low, high) == wilson_interval(float(means.mean()), 50) and high - low > 0.1
