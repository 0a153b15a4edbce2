from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.distances import BINS, build_distances
from allrounder.report.outcome import Outcome

NAN = float("nan")


def outcome(probe: str, *distances: float) -> Outcome:
    """0 is wrong without an attack, NaN is robust."""
    distance = np.array(distances)
    predicted = {"natural": (distance == 0).astype(np.int64), probe: (~np.isnan(distance)).astype(np.int64)}
    return Outcome(np.zeros(len(distance), np.int64), predicted, {}, {probe: distance})


def charts(*entries: Entry) -> list[Chart]:
    return [chart for chart in build_distances(Results(entries)) if isinstance(chart, Chart)]


def test_heights_are_percents_of_images_by_distance():
    (chart,) = charts(Entry("a", {0: outcome("aa@L2:1", 0, NAN, NAN, 0.02, 0.52, 0.54, 1.0000001, 0.99)}))
    (series,) = chart.series
    expected = np.zeros(BINS)
    expected[0], expected[10], expected[-1] = 12.5, 25, 25
    assert series.x == pytest.approx(np.arange(BINS + 1) / BINS)
    assert series.y == pytest.approx([*expected, expected[-1]])
    assert series.name == "a (12.5% wrong, 25.0% robust)" and series.row == "a" and series.mark == "steps"


def test_seeds_are_averaged():
    (chart,) = charts(
        Entry("a", {0: outcome("aa@L2:1", 0.01, NAN), 1: outcome("aa@L2:1", 0, 0.01, 0.01, NAN)})
    )
    assert chart.series[0].y[0] == pytest.approx(50)
    assert chart.series[0].name == "a (12.5% wrong, 37.5% robust)"


def test_fab_has_its_own_chart_and_rows_without_a_probe_are_named():
    first = Entry("first", {0: outcome("fab@L2:1", 0.3, 0.4)})
    second = Entry("second", {0: outcome("aa@L2:1", 0.3, 1.0)})
    aa, fab = charts(first, second)
    assert [series.row for series in aa.series] == [
        "second"
    ] and "Left out, without aa@L2:1: first." in aa.about
    assert [series.row for series in fab.series] == ["first"] and "Left out" in fab.about


def test_an_attack_that_uses_its_whole_budget_has_no_chart():
    assert charts(Entry("a", {0: outcome("pgd-20@Linf:8/255", 0, NAN, 8 / 255, 8.01 / 255)})) == []
    assert charts(Entry("a", {0: outcome("aa@Linf:8/255", 0, NAN)})) == []


def test_images_that_another_attack_than_autoattack_leaves_robust_are_an_upper_bound():
    (weak,) = charts(Entry("a", {0: outcome("fab@L2:1", 0.02, NAN)}))
    assert "Robust: fab only: an upper bound." in weak.about
    (strong,) = charts(Entry("a", {0: outcome("aa@L2:1", 0.02, NAN)}))
    assert "upper bound" not in strong.about
