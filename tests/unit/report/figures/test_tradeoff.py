from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.tradeoff import build_tradeoff
from allrounder.report.outcome import Outcome
from tests.support.results import make_results

RESULTS = make_results()


def charts(results: Results) -> dict[str, Chart]:
    return {chart.name: chart for chart in build_tradeoff(results) if isinstance(chart, Chart)}


def test_points_are_means_over_seeds_of_natural_and_of_worst_accuracies():
    chart = charts(RESULTS)["tradeoff"]
    entry = RESULTS.entries[0]
    natural, worst = [], []
    for outcome in entry.outcomes.values():
        correct = {name: array == outcome.label for name, array in outcome.predicted.items()}
        natural.append(correct["natural"].mean())
        worst.append(np.all([mask for name, mask in correct.items() if name.startswith("aa@")], 0).mean())
    point = chart.series[0]
    assert point.name == point.row == "Row 0" and point.mark == "points"
    assert (point.x[0], point.y[0]) == pytest.approx((100 * np.mean(natural), 100 * np.mean(worst)))
    cell = entry.cell(("aa", "worst"))
    assert cell is not None and cell.interval is not None
    assert point.y_interval[0] == pytest.approx([100 * end for end in cell.interval])
    cell = entry.cell(("natural", None))
    assert cell is not None and cell.interval is not None
    assert point.x_interval[0] == pytest.approx([100 * end for end in cell.interval])


def test_every_pair_of_norms_has_a_chart():
    by_name = charts(RESULTS)
    assert list(by_name) == ["tradeoff", "tradeoff-linf-l2", "tradeoff-linf-l1", "tradeoff-l2-l1"]
    outcome = RESULTS.entries[-1].outcomes[0]
    point = next(series for series in by_name["tradeoff-l2-l1"].series if series.row == "External")
    expected = [(outcome.predicted[f"aa@{threat}"] == outcome.label).mean() for threat in ("L2:1/2", "L1:12")]
    assert (*point.x, *point.y) == pytest.approx([100 * share for share in expected])


def entry(name: str, natural: int, robust: int) -> Entry:
    predicted = {"natural": natural, "pgd-20@Linf:1": robust}
    arrays = {probe: (np.arange(100) >= count).astype(np.int64) for probe, count in predicted.items()}
    return Entry(name, {0: Outcome(np.zeros(100, np.int64), arrays)})


def test_the_front_has_the_rows_that_no_other_row_beats():
    rows = (entry("a", 90, 10), entry("beaten", 70, 40), entry("b", 75, 50), entry("c", 60, 55))
    front = charts(Results(rows))["tradeoff"].series[-1]
    assert (front.name, front.row) == ("Pareto front", "")
    assert (front.x, front.y) == (pytest.approx((60, 75, 90)), pytest.approx((55, 50, 10)))


def test_one_row_has_no_front_and_pgd_is_called_an_upper_bound():
    chart = charts(Results((entry("a", 90, 10),)))["tradeoff"]
    assert [series.name for series in chart.series] == ["a"]
    assert "pgd-20 only: an upper bound" in chart.y.title
    assert "pgd-20 only: an upper bound" in chart.about


def test_only_charts_with_several_threats_on_an_axis_explain_the_worst_case():
    by_name = charts(RESULTS)
    assert "Worst:" in by_name["tradeoff"].about and "Worst:" not in by_name["tradeoff-l2-l1"].about
