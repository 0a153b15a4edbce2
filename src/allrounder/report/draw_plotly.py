"""Charts as plotly figures: plain values for JSON, made without plotly.

The title and the text of a chart belong to the page. So do the colours of fonts and grids: backgrounds are
transparent, and nothing else depends on a light or dark page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Series
from allrounder.report.chart_table import format_value, point_texts
from allrounder.report.palette import DASHES, NEUTRAL, SYMBOLS, SeriesStyle, color_range, style_series

Json = dict[str, Any]
MAX_MARKERS = 12
"""Points of a line that are marked; with more, symbols would touch."""
MAX_NUMBERS = 25
"""Columns of a heatmap that shows its numbers; with more, they do not fit."""
MAX_LEGEND_ABOVE = 8
"""Series of a legend above the chart; a longer one is beside it, where it scrolls."""
MODES = {"points": "markers", "line": "lines+markers"}
"""Of traces; other marks have lines only."""
TITLE_WIDTH = 46
"""Characters of a line of the title of an axis, which plotly would cut."""
TRANSPARENT = "rgba(0,0,0,0)"
SEQUENTIAL, DIVERGING = "Cividis", "RdBu"
"""Scales of colours: perceptually uniform, and one for numbers on both sides of zero."""
SHAPE_LINE = {"color": NEUTRAL, "width": 1, "dash": "dot"}


def to_plotly(chart: AnyChart, colors: Mapping[str, str]) -> Json:
    """Return "data" and "layout" of a plotly figure; `colors` are those of all rows of the report.

    The row of every trace is its `meta["row"]`, by which a page filters traces.
    """
    return _draw_heatmap(chart) if isinstance(chart, Heatmap) else _draw_chart(chart, colors)


def escape(text: str) -> str:
    """Return a text that plotly shows unchanged, although it reads some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _draw_chart(chart: Chart, colors: Mapping[str, str]) -> Json:
    styles = style_series(chart, colors)
    traces = [_draw_series(chart, s, style) for s, style in zip(chart.series, styles, strict=True)]
    layout: Json = {
        **_base_layout(len(traces)),
        "xaxis": _draw_axis(chart.x),
        "yaxis": _draw_axis(chart.y),
        "barmode": "group",
        "shapes": [],
        "annotations": [],
    }
    categories = dict.fromkeys(x for series in chart.series for x in series.x if isinstance(x, str))
    if categories:
        order = list(map(escape, categories))
        layout["xaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": order}
    _add_marks_(layout, chart)
    if chart.diagonal:
        low, high = _diagonal_ends(chart)
        ends = {"x0": low, "y0": low, "x1": high, "y1": high}
        layout["shapes"].append({"type": "line", **ends, "line": SHAPE_LINE, "layer": "below"})
    return {"data": traces, "layout": layout}


def _draw_series(chart: Chart, series: Series, style: SeriesStyle) -> Json:
    titles = escape(chart.x.title), escape(chart.y.title)
    texts = [
        f"<b>{escape(series.name)}</b><br>{titles[0]}: {escape(x)}<br>{titles[1]}: {escape(y)}"
        for x, y in point_texts(chart, series)
    ]
    trace: Json = {
        "type": "bar" if series.mark == "bars" else "scatter",
        "name": escape(series.name),
        "x": [escape(x) if isinstance(x, str) else _number(x) for x in series.x],
        "y": [_number(y) for y in series.y],
        "hovertext": texts,
        "hoverinfo": "text",
        "meta": {"row": series.row},
        "marker": {"color": style.color},
    }
    if series.mark != "bars":
        trace |= {"mode": MODES.get(series.mark, "lines"), "line": {"color": style.color, "width": 2}}
        size = {"size": 11} if series.mark == "points" else {"size": 7, "maxdisplayed": MAX_MARKERS}
        trace["marker"] |= {"symbol": style.symbol, **size}
        if series.mark == "dashes":
            trace["line"]["dash"] = "dash"
        if series.mark == "steps":
            trace["line"] |= {"shape": "hv", "dash": DASHES[SYMBOLS.index(style.symbol)]}
    if series.y_interval:
        trace["error_y"] = _draw_interval(series.y, series.y_interval, style.color)
    if series.x_interval:
        trace["error_x"] = _draw_interval(series.x, series.x_interval, style.color)
    return trace


def _draw_interval(
    values: Sequence[float | str], intervals: Sequence[tuple[float, float]], color: str
) -> Json:
    pairs = [(float(value), low, high) for value, (low, high) in zip(values, intervals, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [_number(high - value) for value, _, high in pairs],
        "arrayminus": [_number(value - low) for value, low, _ in pairs],
        "color": color,
        "thickness": 1,
        "width": 3,
    }


def _draw_heatmap(chart: Heatmap) -> Json:
    percent = chart.unit == "%"
    texts = [[format_value(value, percent) for value in row] for row in chart.values]
    hover = [
        [
            f"{escape(chart.y.title)}: {escape(name)}<br>{escape(chart.x.title)}: {escape(column)}"
            f"<br><b>{text}{escape(chart.unit)}</b>"
            for column, text in zip(chart.columns, row, strict=True)
        ]
        for name, row in zip(chart.rows, texts, strict=True)
    ]
    low, high = color_range(chart)
    trace: Json = {
        "type": "heatmap",
        "x": list(map(escape, chart.columns)),
        "y": list(map(escape, chart.rows)),
        "z": [[_number(value) for value in row] for row in chart.values],
        "zmin": low,
        "zmax": high,
        "colorscale": DIVERGING if low < 0 else SEQUENTIAL,
        "colorbar": {"ticksuffix": escape(chart.unit), "outlinewidth": 0, "thickness": 12},
        "hovertext": hover,
        "hoverinfo": "text",
        "xgap": 1,
        "ygap": 1,
        "meta": {"row": chart.row},
    }
    if len(chart.columns) <= MAX_NUMBERS:
        short = [[format_value(round(value, 1)) for value in row] for row in chart.values]
        trace |= {"text": short if percent else texts, "texttemplate": "%{text}"}
    axes = {
        "xaxis": {**_draw_axis(chart.x), "type": "category"},
        "yaxis": {**_draw_axis(chart.y), "type": "category", "autorange": "reversed"},
    }
    height = max(360, 160 + 26 * len(chart.rows))
    return {"data": [trace], "layout": {**_base_layout(1), **axes, "height": height}}


def _base_layout(num_series: int) -> Json:
    above = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    return {
        "paper_bgcolor": TRANSPARENT,
        "plot_bgcolor": TRANSPARENT,
        "showlegend": num_series > 1,
        "legend": above if num_series <= MAX_LEGEND_ABOVE else {"orientation": "v"},
        "hovermode": "closest",
        "margin": {"l": 50, "r": 20, "t": 40, "b": 50},
        "height": 440,
    }


def _draw_axis(axis: Axis) -> Json:
    title = "<br>".join(map(escape, wrap(axis.title, TITLE_WIDTH)))
    drawn: Json = {"title": {"text": title}, "automargin": True, "zeroline": False}
    if axis.percent:
        drawn["ticksuffix"] = "%"
    if axis.log:
        drawn["type"] = "log"
    return drawn


def _add_marks_(layout: Json, chart: Chart) -> None:
    """Add vertical lines; of several with the same name, only the first has it as a text."""
    named: set[str] = set()
    for x, name in chart.marks:
        line = {"x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": SHAPE_LINE, "layer": "below"}
        layout["shapes"].append({"type": "line", **line})
        if name in named:
            continue
        named.add(name)
        place = {"x": math.log10(x) if chart.x.log else x, "y": 1, "yref": "paper", "yanchor": "top"}
        layout["annotations"].append({"text": escape(name), **place, "xanchor": "left", "showarrow": False})


def _diagonal_ends(chart: Chart) -> tuple[float, float]:
    if chart.x.percent:
        return 0.0, 100.0
    numbers = [float(x) for series in chart.series for x in series.x if not isinstance(x, str)]
    return (min(numbers), max(numbers)) if numbers else (0.0, 1.0)


def _number(value: float | str) -> float | None:
    """Return a number as JSON can hold it: NaN and infinities become null."""
    return float(value) if math.isfinite(float(value)) else None
