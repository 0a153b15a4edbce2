"""Writes the names of points beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from allrounder.report.chart import Chart, Series
from allrounder.report.draw_panels import SMALL, clean
from allrounder.report.palette import NEUTRAL, SeriesStyle, darken
from allrounder.report.place_labels import Floats, boxes_around, place_labels

MAX_LABELS = 12
"""Points that have their names beside them; more are named in the legend."""
MARKER = 6.0
"""The size of a marker."""
PIECE = 4.0
"""The length of the pieces of lines and error bars that names should not cover."""
LONG_LEADER = 12.0
"""A name that is farther away than this is connected with its point by a line."""


def names_points(chart: Chart) -> bool:
    """Whether the points of a chart have their names beside them, and not in the legend."""
    points = [series for series in chart.series if series.mark == "points"]
    return 0 < len(points) <= MAX_LABELS and all(len(series.x) == 1 for series in points)


def label_points(axes: Axes, chart: Chart, styles: Sequence[SeriesStyle]) -> None:
    """Write the names of points beside them. The layout must be final."""
    figure: Any = axes.figure
    scale = 72 / figure.dpi
    points = [
        (series, style)
        for series, style in zip(chart.series, styles, strict=True)
        if series.mark == "points" and math.isfinite(float(series.x[0]) + series.y[0])
    ]
    places = [_to_points(axes, [(float(series.x[0]), series.y[0])], scale)[0] for series, _ in points]
    sizes = [_measure(axes, clean(series.name), scale) for series, _ in points]
    obstacles = [boxes_around(np.array(places).reshape(-1, 2), (MARKER, MARKER))]
    obstacles += [_line_boxes(axes, series, scale) for series in chart.series]
    ends: Any = axes.get_window_extent()
    frame = scale * np.array([ends.x0, ends.y0, ends.x1, ends.y1])
    pairs = [(float(x), float(y)) for x, y in places]
    centers = place_labels(pairs, sizes, np.concatenate(obstacles), frame)
    for (series, style), place, center, size in zip(points, pairs, centers, sizes, strict=True):
        offset = (center[0] - place[0], center[1] - place[1])
        gap = math.hypot(max(0, abs(offset[0]) - size[0] / 2), max(0, abs(offset[1]) - size[1] / 2))
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": NEUTRAL, "shrinkA": 0, "shrinkB": MARKER / 2}
        axes.annotate(
            clean(series.name),
            (float(series.x[0]), series.y[0]),
            offset,
            textcoords="offset points",
            fontsize=SMALL,
            color=darken(style.color),
            ha="center",
            va="center",
            in_layout=False,
            arrowprops=line if gap > LONG_LEADER else None,
        )


def _measure(axes: Axes, name: str, scale: float) -> tuple[float, float]:
    """Return the width and the height of a name."""
    text = axes.text(0, 0, name, size=SMALL)
    box = text.get_window_extent()
    text.remove()
    return scale * box.width + 1, scale * box.height


def _to_points(axes: Axes, data: Sequence[tuple[float, float]], scale: float) -> Floats:
    """Return the places of data in points of 1/72 inch."""
    places: Any = axes.transData.transform(np.array(data, float).reshape(-1, 2))
    return scale * places


def _line_boxes(axes: Axes, series: Series, scale: float) -> Floats:
    """Return small boxes along the lines and error bars of a series."""
    xs = [float(x) for x in series.x]
    ends = [((x, low), (x, high)) for x, (low, high) in zip(xs, series.y_interval, strict=False)]
    ends += [((low, y), (high, y)) for y, (low, high) in zip(series.y, series.x_interval, strict=False)]
    if series.mark != "points":
        corners = list(zip(xs, series.y, strict=True))
        ends += pairwise(corners)
    centers: list[Floats] = []
    for start, end in ends:
        a, b = _to_points(axes, [start, end], scale)
        if np.isfinite(a).all() and np.isfinite(b).all():
            pieces = 1 + math.ceil(float(np.hypot(*(b - a))) / PIECE)
            centers.append(a + np.linspace(0, 1, pieces)[:, None] * (b - a))
    return boxes_around(np.concatenate([*centers, np.zeros((0, 2))]), (1.0, 1.0))
