from __future__ import annotations

from dataclasses import replace

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.theory import build_theory
from tests.support.results import make_training


def test_rows_with_several_learners_have_distances_drift_and_regret():
    training = make_training()
    single = replace(training, learners=("natural",))
    entries = (Entry("a", trainings={0: training}), Entry("b", trainings={0: single}), Entry("c"))
    charts = {chart.name: chart for chart in build_theory(Results(entries)) if isinstance(chart, Chart)}
    assert list(charts) == ["theory-distances-a", "theory-drift-a", "theory-regret-a"]
    assert all(chart.row == "a" for chart in charts.values())
    around_mixture, around_global = charts["theory-drift-a"].series
    assert around_mixture.x == (2.0, 4.0) and around_mixture.y == (0.2, 0.4)
    assert around_global.y == (0.25 * 4 + 0.75, 0.25 * 4 + 0.75)
