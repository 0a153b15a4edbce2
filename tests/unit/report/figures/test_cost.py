from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.cost import build_cost, count_passes
from allrounder.report.outcome import Outcome


def entry(name: str, probe: str = "aa@Linf:1", cost: str = "", minutes: tuple[float, ...] = ()) -> Entry:
    correct = {"natural": 90, probe: 40}
    arrays = {name: (np.arange(100) >= count).astype(np.int64) for name, count in correct.items()}
    return Entry(name, {0: Outcome(np.zeros(100, np.int64), arrays)}, cost=cost, minutes=minutes)


def charts(*entries: Entry) -> dict[str, Chart]:
    return {chart.name: chart for chart in build_cost(Results(entries)) if isinstance(chart, Chart)}


def test_a_cost_is_the_sum_of_both_kinds_of_passes():
    assert count_passes("132/264") == 396
    assert count_passes("") is count_passes("-") is None


def test_points_are_costs_and_accuracies():
    by_name = charts(entry("a", cost="10/20", minutes=(1.0, 4.0)))
    points = {name: (chart.series[0].x[0], chart.series[0].y[0]) for name, chart in by_name.items()}
    assert points == {
        "cost-passes-robust": (30, pytest.approx(40)),
        "cost-passes-natural": (30, pytest.approx(90)),
        "cost-minutes-robust": (2.5, pytest.approx(40)),
        "cost-minutes-natural": (2.5, pytest.approx(90)),
    }
    assert all(chart.x.log and chart.series[0].y_interval for chart in by_name.values())


def test_rows_without_a_cost_or_without_the_judge_are_left_out():
    by_name = charts(entry("a", cost="1/1"), entry("weak", "pgd@Linf:1", cost="2/2"), entry("unknown"))
    rows = {name: [series.row for series in chart.series] for name, chart in by_name.items()}
    assert rows == {"cost-passes-robust": ["a"], "cost-passes-natural": ["a", "weak"]}
    assert by_name["cost-passes-robust"].about.endswith(
        "Unknown for: unknown. Left out, without aa@Linf:1: weak."
    )
