"""The numbers of a chart as a table of texts, for readers who cannot see it or want to copy them."""

from __future__ import annotations

import math

from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Series

Table = tuple[list[str], list[list[str]]]
"""The header, and the rows below it."""
MISSING = "-"


def chart_table(chart: AnyChart) -> Table:
    """Return a heatmap as its matrix, curves over a common x with a column for each, and other charts with a
    line for each point."""
    if isinstance(chart, Heatmap):
        corner = " / ".join(filter(None, (chart.y.title, chart.x.title)))
        values = [[format_value(value, chart.unit == "%") for value in row] for row in chart.values]
        return [corner, *chart.columns], [
            [name, *cells] for name, cells in zip(chart.rows, values, strict=True)
        ]
    return _table_by_x(chart) if _are_curves(chart) else _table_by_point(chart)


def format_value(value: float | str, percent: bool = False) -> str:
    """Return a percentage with two decimals, another number with four digits, and "-" for NaN."""
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return MISSING
    return f"{value:.2f}" if percent else f"{value:.4g}"


def axis_title(axis: Axis) -> str:
    """Return the title of an axis with its unit."""
    return f"{axis.title} (%)" if axis.percent and "%" not in axis.title else axis.title


def format_point(axis: Axis, value: float | str, interval: tuple[float, float] | None) -> str:
    """Return a value of an axis with its interval, if there is one: "54.80 (51.70-57.86)"."""
    text = format_value(value, axis.percent)
    if interval is None or text == MISSING:
        return text
    low, high = (format_value(end, axis.percent) for end in interval)
    return f"{text} ({low}-{high})"


def point_texts(chart: Chart, series: Series) -> list[tuple[str, str]]:
    """Return x and y of every point of a series as texts."""
    x_intervals = series.x_interval or (None,) * len(series.x)
    y_intervals = series.y_interval or (None,) * len(series.y)
    x_texts = [format_point(chart.x, x, end) for x, end in zip(series.x, x_intervals, strict=True)]
    y_texts = [format_point(chart.y, y, end) for y, end in zip(series.y, y_intervals, strict=True)]
    return list(zip(x_texts, y_texts, strict=True))


def _are_curves(chart: Chart) -> bool:
    """Whether series have several points, at most one at every x, and x is exact."""
    repeated = any(len(set(series.x)) < len(series.x) or series.x_interval for series in chart.series)
    return not repeated and any(len(series.x) > 1 for series in chart.series)


def _table_by_x(chart: Chart) -> Table:
    xs = dict.fromkeys(x for series in chart.series for x in series.x)
    numbers = [x for x in xs if not isinstance(x, str)]
    names = [x for x in xs if isinstance(x, str)]
    columns = [
        dict(zip(series.x, (y for _, y in point_texts(chart, series)), strict=True))
        for series in chart.series
    ]
    rows = [
        [format_value(x, chart.x.percent), *(column.get(x, MISSING) for column in columns)]
        for x in (*sorted(numbers), *names)
    ]
    return [axis_title(chart.x), *(series.name for series in chart.series)], rows


def _table_by_point(chart: Chart) -> Table:
    rows = [[series.name, *texts] for series in chart.series for texts in point_texts(chart, series)]
    return ["", axis_title(chart.x), axis_title(chart.y)], rows
