"""Draws one chart into axes of matplotlib, in a style for papers that also works without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill, wrap
from typing import Any, final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Series
from allrounder.report.chart_table import format_value
from allrounder.report.palette import NEUTRAL, SYMBOLS, SeriesStyle, color_range

MARKERS: dict[str, str] = dict(zip(SYMBOLS, "osD^PXv*", strict=True))
STEP_LINES: dict[str, Any] = dict(
    zip(
        SYMBOLS,
        [
            "-",
            (0, (4, 1)),
            (0, (1, 1)),
            (0, (4, 1, 1, 1)),
            (0, (8, 1)),
            (0, (8, 1, 1, 1)),
            (0, (2, 1)),
            (0, (2, 1, 1, 1)),
        ],
        strict=True,
    )
)
"""Lines of step functions, which have no symbols."""
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++", "oooo")
"""Of bars, in the order of their series."""
LETTER = 0.056
"""The usual width of a letter of a label, in inches."""
MAX_LINES = 3
"""Lines of a label below the x axis."""
MAX_NAME = 40
"""Characters of a name that is drawn."""
MARKERS_PER_LINE = 8
MAX_NUMBERS = 25
"""Columns of a heatmap that shows its numbers."""
TITLE_WIDTHS = {"x": 46, "y": 28}
"""Characters of a line of the title of an axis."""
MANY_DECADES = 500
"""The ratio of the ends of a logarithmic axis that has ticks at powers of ten only."""
SMALL = 6.5
"""The size of texts inside the axes."""


def clean(text: str, limit: int = MAX_NAME) -> str:
    """Return a text as it is drawn: on one line, without control characters, and not too long. A leading
    underscore, with which matplotlib hides a name, gets a space before it."""
    text = "".join(char if char.isprintable() else " " for char in text)
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return f" {text}" if text.startswith("_") else text


@final
@dataclass(frozen=True)
class TickLabels:
    """The names below the x axis."""

    texts: tuple[str, ...]
    turned: bool = False

    @classmethod
    def fit(cls, names: Sequence[str], width: float) -> TickLabels:
        """Lay out names below an axis of a width in inches: side by side, on a few lines, or turned."""
        texts = tuple(map(clean, names))
        letters = int(width / max(len(names), 1) / LETTER) - 1
        lines = [wrap(text, max(letters, 1), break_long_words=False) or [""] for text in texts]
        if all(len(parts) <= MAX_LINES and max(map(len, parts)) <= letters for parts in lines):
            return cls(tuple("\n".join(parts) for parts in lines))
        return cls(texts, turned=True)

    @property
    def height(self) -> float:
        """The height in inches."""
        if self.turned:
            return 0.1 + 0.64 * LETTER * max(map(len, self.texts))
        return 0.12 * max((text.count("\n") + 1 for text in self.texts), default=1)

    def draw(self, axes: Axes, start: float) -> None:
        """Set the ticks of an axis, the first one at `start` and others in steps of 1."""
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "va": "center", "rotation_mode": "anchor"}
        ticks = [start + number for number in range(len(self.texts))]
        axes.set_xticks(ticks, self.texts, **(turn if self.turned else {}))


def list_categories(chart: AnyChart) -> list[str]:
    """Return the names along the x axis, each once; empty if it has numbers."""
    if isinstance(chart, Heatmap):
        return list(chart.columns)
    return list(dict.fromkeys(x for series in chart.series for x in series.x if isinstance(x, str)))


def draw_chart(axes: Axes, chart: Chart, styles: Sequence[SeriesStyle], labels: TickLabels) -> None:
    """Draw the series, marks and axes of a chart; `labels` are those of its categories."""
    positions = {name: float(place) for place, name in enumerate(list_categories(chart))}
    num_bars = sum(series.mark == "bars" for series in chart.series)
    bar = 0
    if any(series.mark == "points" for series in chart.series):
        axes.margins(0.12)  # names are beside points
    for index, (series, style) in enumerate(zip(chart.series, styles, strict=True)):
        xs = np.array([positions[x] if isinstance(x, str) else x for x in series.x], float)
        if series.mark == "bars":
            width = 0.8 / num_bars
            _draw_bars(axes, xs + (bar - (num_bars - 1) / 2) * width, width, series, style, HATCHES[bar % 8])
            bar += 1
        else:
            _draw_points(axes, xs, series, style, index)
    _draw_axis(axes, "x", chart.x)
    _draw_axis(axes, "y", chart.y)
    if positions:
        labels.draw(axes, 0.0)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.02)
    _draw_marks(axes, chart)
    if chart.diagonal:
        low, high = (0.0, 100.0) if chart.x.percent else axes.get_xlim()
        axes.plot([low, high], [low, high], color=NEUTRAL, linewidth=0.8, linestyle=":", zorder=1)


def legend_handle(series: Series, style: SeriesStyle, number: int) -> Any:
    """Return what stands for a series in a legend; `number` counts the bars before it."""
    if series.mark == "bars":
        return Patch(facecolor=style.color, edgecolor="white", linewidth=0, hatch=HATCHES[number % 8])
    return Line2D([], [], **_line_style(series, style))


def draw_heatmap(axes: Axes, chart: Heatmap, labels: TickLabels) -> None:
    """Draw a matrix as colours with the numbers on top; with many columns, colours only and their scale."""
    low, high = color_range(chart)
    colormap = matplotlib.colormaps["RdBu" if low < 0 else "cividis"]
    values = np.ma.masked_invalid(np.array(chart.values, float).reshape(len(chart.rows), len(chart.columns)))
    mesh = axes.pcolormesh(values, cmap=colormap, vmin=low, vmax=high, edgecolors="white", linewidth=0.6)
    axes.set(xlabel=clean(chart.x.title, 80), ylabel=clean(chart.y.title, 80))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    labels.draw(axes, 0.5)
    axes.set_yticks(np.arange(len(chart.rows)) + 0.5, list(map(clean, chart.rows)))
    if len(chart.columns) > MAX_NUMBERS:
        bar: Any = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(_number_format(chart.unit))
        return
    for row, numbers in enumerate(chart.values):
        for column, value in enumerate(numbers):
            red, green, blue, _ = colormap((value - low) / (high - low))
            is_light = math.isnan(value) or 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
            text = format_value(round(value, 1))
            color = "black" if is_light else "white"
            axes.text(column + 0.5, row + 0.5, text, size=SMALL, ha="center", va="center", color=color)


def _draw_points(axes: Axes, xs: Any, series: Series, style: SeriesStyle, index: int) -> None:
    """Draw points with error bars, or a line with a band for its intervals and a few markers."""
    ys = np.array(series.y, float)
    if series.mark == "points":
        errors = {"yerr": _errors(ys, series.y_interval), "xerr": _errors(xs, series.x_interval)}
        line: dict[str, Any] = {"fmt": "none", "ecolor": style.color, "elinewidth": 0.7, "alpha": 0.6}
        axes.errorbar(xs, ys, **errors, **line, zorder=2)
        axes.plot(xs, ys, **_line_style(series, style), zorder=4)
        return
    step = max(1, math.ceil(len(xs) / MARKERS_PER_LINE))
    where = "steps-post" if series.mark == "steps" else "default"
    axes.plot(xs, ys, **_line_style(series, style), markevery=(index % step, step), drawstyle=where, zorder=3)
    if series.y_interval:
        low, high = np.array(series.y_interval, float).T
        axes.fill_between(xs, low, high, color=style.color, alpha=0.15, linewidth=0, zorder=1)


def _line_style(series: Series, style: SeriesStyle) -> dict[str, Any]:
    lines = {"points": "none", "dashes": (0, (4, 2)), "steps": STEP_LINES[style.symbol]}
    line = lines.get(series.mark, "-")
    marker = MARKERS[style.symbol] if series.mark in ("points", "line") else ""
    size = 5.5 if series.mark == "points" else 4
    size *= 1.3 if marker == "*" else 0.85 if marker == "D" else 1
    look: dict[str, Any] = {"color": style.color, "linestyle": line, "marker": marker, "markersize": size}
    return look | {"linewidth": 1.2, "markeredgecolor": "white", "markeredgewidth": 0.4}


def _draw_bars(axes: Axes, xs: Any, width: float, series: Series, style: SeriesStyle, hatch: str) -> None:
    ys = np.array(series.y, float)
    axes.bar(xs, ys, 0.92 * width, color=style.color, hatch=hatch, edgecolor="white", linewidth=0, zorder=2)
    if series.y_interval:
        errors = _errors(ys, series.y_interval)
        axes.errorbar(xs, ys, errors, fmt="none", ecolor="#333333", elinewidth=0.6, zorder=3)


def _errors(values: Any, intervals: Sequence[tuple[float, float]]) -> Any:
    """Return the distances from values to the ends of their intervals, as matplotlib expects them."""
    if not intervals:
        return None
    low, high = np.array(intervals, float).T
    return np.stack([np.maximum(values - low, 0), np.maximum(high - values, 0)])


def _draw_axis(axes: Axes, which: str, axis: Axis) -> None:
    drawn = axes.xaxis if which == "x" else axes.yaxis
    drawn.set_label_text(fill(clean(axis.title, 120), TITLE_WIDTHS[which]))
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        low, high = drawn.get_view_interval()
        drawn.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < MANY_DECADES else (1,)))
        drawn.set_minor_formatter(NullFormatter())
    else:
        drawn.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    drawn.set_major_formatter(_number_format("%" if axis.percent else ""))
    if axis.percent:
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        limits = max(low, -3.0), min(high, 103.0)
        (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)


def _number_format(unit: str) -> FuncFormatter:
    def write(value: float, _: object) -> str:
        return f"{value:g}{unit}"

    return FuncFormatter(write)


def _draw_marks(axes: Axes, chart: Chart) -> None:
    """Draw vertical lines; of several with the same name, only the first has it as a text."""
    named: set[str] = set()
    for x, name in chart.marks:
        axes.axvline(x, color=NEUTRAL, linewidth=0.6, linestyle=":", zorder=1)
        if name not in named:
            place: dict[str, Any] = {
                "rotation": 90,
                "ha": "right",
                "va": "top",
                "size": 5.5,
                "color": "#555555",
            }
            axes.text(x, 0.99, clean(name), transform=axes.get_xaxis_transform(), **place)
        named.add(name)
