"""Colours and symbols of rows, the same in all figures.

Colours are those of Okabe and Ito (2008) that show on white and on black, which also colour-blind people tell
apart. A symbol is a second cue, for print without colours and for more rows than there are colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from allrounder.report.chart import Chart, Heatmap

BASE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
"""Blue, vermilion, green, purple, orange, sky blue, and grey instead of black and yellow."""
TINTS = ((255, 0.0), (255, 0.45), (0, 0.4))
"""Further rows get lighter, then darker colours: the shade that is mixed in, and how much of it."""
NEUTRAL = "#888888"
"""For series that belong to no row."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")
"""In plotly's words. Their number has no common divisor with that of the colours, so pairs repeat late."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "8px 2px", "2px 1px")
"""Of step functions, which have no symbols: a dash for every symbol, in plotly's words."""


def row_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for every name, such as "#0072b2"."""
    colors = [_mix(color, shade, amount) for shade, amount in TINTS for color in BASE_COLORS]
    return {name: colors[index % len(colors)] for index, name in enumerate(dict.fromkeys(names))}


def row_symbols(names: Iterable[str]) -> dict[str, str]:
    """Return a symbol for every name; the first 168 names differ in colour or symbol."""
    return {name: SYMBOLS[index % len(SYMBOLS)] for index, name in enumerate(dict.fromkeys(names))}


@final
@dataclass(frozen=True)
class SeriesStyle:
    """How a series is drawn, besides its mark."""

    color: str
    symbol: str


def style_series(chart: Chart, colors: Mapping[str, str]) -> list[SeriesStyle]:
    """Return the style of every series of a chart.

    A series has the colour and the symbol of its row; beside rows, a series of no row is grey. Where that
    would make series look alike, because they all belong to one row or to none, their names decide instead:
    there, a dashed "natural (training)" has the colour of the line "natural (held-out)".
    """
    rows = [series.row for series in chart.series if series.row]
    if chart.row or not rows or (len(rows) > 1 and len(set(rows)) == 1):
        has_dashes = {"line", "dashes"} <= {series.mark for series in chart.series}
        keys = [s.name.partition(" (")[0] if has_dashes else s.name for s in chart.series]
        pairs = zip(keys, chart.series, strict=True)
        names = [key for key, series in pairs if chart.row or series.row or not rows]
        by_name, symbols = row_colors(names), row_symbols(names)
    else:
        keys = [series.row for series in chart.series]
        by_name, symbols = colors, row_symbols(colors)
    return [SeriesStyle(by_name.get(key, NEUTRAL), symbols.get(key, SYMBOLS[0])) for key in keys]


def color_range(chart: Heatmap) -> tuple[float, float]:
    """Return the numbers at the ends of the colours: 0 and 100 for percents, around 0 if one is negative."""
    values = [value for row in chart.values for value in row if math.isfinite(value)] or [0.0]
    if min(values) < 0:
        return -max(map(abs, values)), max(map(abs, values))
    return 0.0, 100.0 if chart.unit == "%" else max(values) or 1.0


def darken(color: str) -> str:
    """Return a darker colour, for small texts on white."""
    return _mix(color, 0, 0.35)


def _mix(color: str, shade: int, amount: float) -> str:
    channels = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round((1 - amount) * channel + amount * shade):02x}" for channel in channels)
