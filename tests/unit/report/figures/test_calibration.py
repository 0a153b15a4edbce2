from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.calibration import build_calibration
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import wilson_interval


def outcome(correct: list[bool], confidence: list[float] | None) -> Outcome:
    predicted = np.where(correct, 0, 1)
    numbers = None if confidence is None else np.array(confidence)
    return Outcome(np.zeros(len(correct), np.int64), {"natural": predicted}, confidence=numbers)


def charts(*entries: Entry) -> list[Chart]:
    return [chart for chart in build_calibration(Results(entries)) if isinstance(chart, Chart)]


def test_points_are_the_bins_with_images():
    (chart,) = charts(Entry("a", {0: outcome([True, False, True, True], [0.5, 0.52, 0.95, 0.99])}))
    (series,) = chart.series
    assert chart.diagonal
    assert (series.x, series.y) == (pytest.approx((51, 97)), pytest.approx((50, 100)))
    ece = (2 * abs(0.5 - 0.51) + 2 * abs(1 - 0.97)) / 4
    assert series.name == f"a (ECE {100 * ece:.1f}%)"
    low, high = wilson_interval(0.5, 2)
    assert series.y_interval[0] == pytest.approx((100 * low, 100 * high))


def test_seeds_share_bins_and_the_error_is_their_mean():
    seeds = {0: outcome([True, True], [0.95, 0.95]), 1: outcome([False, False], [0.95, 0.95])}
    (chart,) = charts(Entry("a", seeds))
    (series,) = chart.series
    assert (series.x, series.y, series.y_interval) == (pytest.approx((95,)), (50,), ())
    assert series.name == "a (ECE 50.0%)"


def test_rows_without_confidences_are_left_out():
    without = Entry("b", {0: outcome([True], None)})
    assert charts(without) == []
    (chart,) = charts(without, Entry("a", {0: outcome([True], [0.9]), 1: outcome([True], None)}))
    assert [series.row for series in chart.series] == ["a"]
