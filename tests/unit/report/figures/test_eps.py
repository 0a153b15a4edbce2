from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.eps import build_eps
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import wilson_interval


def outcome(correct: dict[str, int]) -> Outcome:
    arrays = {name: (np.arange(100) >= count).astype(np.int64) for name, count in correct.items()}
    return Outcome(np.zeros(100, np.int64), arrays)


BUDGETS = {"natural": 90, "pgd@Linf:16/255": 10, "pgd@Linf:4/255": 70, "aa@Linf:8/255": 40}


def charts(*entries: Entry) -> list[Chart]:
    return [chart for chart in build_eps(Results(entries)) if isinstance(chart, Chart)]


def test_accuracies_are_those_of_the_budgets_by_rising_eps():
    (chart,) = charts(Entry("a", {0: outcome(BUDGETS), 1: outcome({**BUDGETS, "pgd@Linf:4/255": 60})}))
    (series,) = chart.series
    assert chart.name == "eps-pgd-linf"
    assert series.x == pytest.approx((0, 4 / 255, 16 / 255))
    assert series.y == pytest.approx((90, 65, 10))


def test_intervals_are_those_of_the_accuracies():
    (chart,) = charts(Entry("a", {0: outcome(BUDGETS)}))
    low, high = wilson_interval(0.7, 100)
    assert chart.series[0].y_interval[1] == pytest.approx((100 * low, 100 * high))


def test_budgets_of_other_attacks_are_marks():
    (chart,) = charts(Entry("a", {0: outcome({**BUDGETS, "fab@Linf:8/255": 50, "aa@L2:1": 5})}))
    assert chart.marks == ((pytest.approx(8 / 255), "aa, fab"),)
    assert "pgd only: an upper bound" in chart.y.title


def test_a_row_with_one_budget_has_no_curve():
    (chart,) = charts(
        Entry("a", {0: outcome(BUDGETS)}), Entry("b", {0: outcome({"natural": 9, "pgd@Linf:4/255": 5})})
    )
    assert [series.row for series in chart.series] == ["a"]
    assert charts(Entry("b", {0: outcome({"natural": 9, "pgd@Linf:4/255": 5, "fog@c-official:1": 3})})) == []
