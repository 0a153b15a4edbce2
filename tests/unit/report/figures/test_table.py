"""What holds for every figure."""

from __future__ import annotations

import math
import re

import pytest

from allrounder.report.chart import AnyChart, Chart, Heatmap
from allrounder.report.entry import Entry, Results
from allrounder.report.figures import FIGURES
from tests.support.results import make_results

RICH = make_results()


def numbers(chart: AnyChart) -> list[float]:
    """All numbers that are drawn as a height or a colour."""
    if isinstance(chart, Heatmap):
        return [value for row in chart.values for value in row]
    return [y for series in chart.series for y in series.y]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_nothing_has_no_chart(name: str):
    assert FIGURES[name].build(Results(())) == []
    assert FIGURES[name].build(Results((Entry("empty"),))) == []


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_rich_results_has_valid_charts(name: str):
    charts = FIGURES[name].build(RICH)
    assert charts
    rows = {entry.name for entry in RICH.entries}
    for chart in charts:
        assert re.fullmatch(rf"{name}[a-z0-9-]*", chart.name)
        assert chart.title and chart.about.endswith(".") and "  " not in chart.about
        assert chart.x.title and chart.y.title and chart.row in {"", *rows}
        finite = [value for value in numbers(chart) if not math.isnan(value)]
        assert finite and all(map(math.isfinite, finite)), "an empty chart"
        percent = chart.unit == "%" if isinstance(chart, Heatmap) else chart.y.percent
        assert not percent or all(0 <= value <= 100 for value in finite)
        if isinstance(chart, Chart):
            assert {series.row for series in chart.series} <= {"", *rows}
            for series in chart.series:
                intervals = zip(series.y, series.y_interval, strict=False)
                assert all(low <= y <= high for y, (low, high) in intervals if not math.isnan(y))


def test_names_of_charts_are_unique():
    names = [chart.name for kind in FIGURES.values() for chart in kind.build(RICH)]
    assert len(set(names)) == len(names)


def test_figures_have_a_heading_and_a_sentence():
    assert all(kind.title and kind.about.endswith(".") for kind in FIGURES.values())
