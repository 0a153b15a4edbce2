from __future__ import annotations

from dataclasses import replace

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.dial import build_dials
from tests.support.results import make_training


def test_every_row_with_mixtures_has_a_chart_of_its_first_seed():
    training = make_training()
    entries = (Entry("a", trainings={3: training}), Entry("b", trainings={0: replace(training, mixtures=())}))
    (chart,) = build_dials(Results(entries))
    assert isinstance(chart, Chart)
    assert (chart.name, chart.row, chart.title) == ("dial-a", "a", "Mixtures after training: a")
    drawn = {series.name: (series.x, series.y) for series in chart.series}
    assert drawn["mixtures"] == ((70.0,), (40.0,))
    assert drawn["front"] == ((70.0, 90.0), (40.0, 10.0))
    assert drawn["linf"] == ((60.0,), (30.0,)) and drawn["natural"] == ((90.0,), (10.0,))
