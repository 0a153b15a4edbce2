"""Saves charts as the panels of one figure for papers: SVG, PDF or PNG, the same bytes for the same charts.

Texts of an SVG stay texts, which can be searched and edited; a PDF embeds its fonts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any, final

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from allrounder.errors import InputError
from allrounder.report.chart import AnyChart, Chart, Heatmap
from allrounder.report.draw_panels import (
    LETTER,
    TickLabels,
    clean,
    draw_chart,
    draw_heatmap,
    legend_handle,
    list_categories,
)
from allrounder.report.label_points import label_points, names_points
from allrounder.report.palette import SeriesStyle, row_colors, style_series
from allrounder.system.files import make_folder, write_atomically

METADATA: Mapping[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}
"""By the endings of files: no dates, which would change the bytes."""
COLUMN, PAGE = 3.4, 7.0
"""The widths of a column and of a page of a paper, in inches."""
AXES_HEIGHT = 2.0
"""Of a chart, in inches."""
CELL_WIDTH, CELL_HEIGHT = 0.32, 0.22
"""Of a heatmap, in inches."""
MARGIN = 0.4
"""For titles, in inches."""
LEGEND_LETTER, TITLE_LETTER = 0.05, 0.068
"""The usual width of a letter of a legend and of a title, in inches."""
MAX_COLUMN_BARS, MAX_COLUMN_NAMES, MAX_COLUMN_SERIES = 24, 12, 16
"""Bars, names along the x axis, and series that fit into the width of a column."""
RESOLUTION = 300
"""Of PNG files, in dots per inch."""
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "font.size": 8,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "allrounder",
    "text.parse_math": False,
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}
"""Settings of matplotlib. Without `text.parse_math`, a "$" in a name is shown as it is."""


@final
@dataclass(frozen=True)
class _Panel:
    """A chart with its styles and its size in inches."""

    chart: AnyChart
    styles: tuple[SeriesStyle, ...]
    width: float
    height: float
    labels: TickLabels

    def with_legend(self) -> _Panel:
        """Return a panel with space for a legend of its own."""
        return replace(self, height=self.height + _legend_height(self.legend(), self.width))

    def legend(self) -> dict[str, Any]:
        """What stands for every series, by its name; empty for one series that needs no name."""
        if isinstance(self.chart, Heatmap) or (len(self.chart.series) == 1 and not self.chart.series[0].row):
            return {}
        named = names_points(self.chart)
        handles: dict[str, Any] = {}
        bars = 0
        for series, style in zip(self.chart.series, self.styles, strict=True):
            if not (named and series.mark == "points"):
                handles[clean(series.name)] = legend_handle(series, style, bars)
            bars += series.mark == "bars"
        return handles


def check_ending(path: Path) -> None:
    """Raise InputError unless a file can be written in the format of its ending."""
    if path.suffix.lower() not in METADATA:
        raise InputError(f'{path}: got the ending "{path.suffix}", expected one of {", ".join(METADATA)}')


def save_figure(
    charts: Sequence[AnyChart], path: str | Path, colors: Mapping[str, str] | None = None
) -> None:
    """Save charts as one figure, in the format of the path's ending: .svg, .pdf or .png.

    One chart has the width of a column of a paper, several that of a page, with titles. `colors` are those of
    the rows; by default, rows have colours in the order of the charts.
    """
    path = Path(path)
    check_ending(path)
    if not charts:
        raise InputError(f"{path}: got no charts to draw, expected one or more")
    rows = [series.row for chart in charts if isinstance(chart, Chart) for series in chart.series]
    panels = [
        _make_panel(chart, row_colors(filter(None, rows)) if colors is None else colors) for chart in charts
    ]
    ending = path.suffix.lower()
    make_folder(path.parent)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Viewers of an SVG have other fonts; in other files, a box stands for the letter.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure = _draw_panels(panels)
        settings: dict[str, Any] = {"metadata": METADATA[ending], "dpi": RESOLUTION}
        write_atomically(path, lambda file: figure.savefig(file, format=ending[1:], **settings))


def _make_panel(chart: AnyChart, colors: Mapping[str, str]) -> _Panel:
    """Choose the size of a panel by what it holds: many bars or columns need the width of a page."""
    names = list_categories(chart)
    if isinstance(chart, Heatmap):
        row_names = 0.4 + LETTER * max((len(clean(name)) for name in chart.rows), default=0)
        width = COLUMN if row_names + CELL_WIDTH * len(names) <= COLUMN else PAGE
        labels = TickLabels.fit(names, width - row_names)
        return _Panel(chart, (), width, CELL_HEIGHT * len(chart.rows) + labels.height + MARGIN, labels)
    bars = sum(len(series.x) for series in chart.series if series.mark == "bars")
    is_wide = bars > MAX_COLUMN_BARS or len(names) > MAX_COLUMN_NAMES or len(chart.series) > MAX_COLUMN_SERIES
    width = PAGE if is_wide else COLUMN
    labels = TickLabels.fit(names, width - 0.7)
    styles = tuple(style_series(chart, colors))
    return _Panel(chart, styles, width, AXES_HEIGHT + labels.height + MARGIN, labels)


def _draw_panels(panels: Sequence[_Panel]) -> Figure:
    """Draw panels in lines from left to right, with a legend for all if they agree, else one for each."""
    legends = [panel.legend() for panel in panels]
    shared = max(legends, key=len)
    is_shared = len(panels) > 1 and all(shared.keys() >= legend.keys() for legend in legends)
    if not is_shared:
        panels = [panel.with_legend() for panel in panels]
    lines = _arrange(panels)
    heights = [max(panel.height for panel in line) for line in lines]
    width = max(sum(panel.width for panel in line) for line in lines)
    below = _legend_height(shared, width) if is_shared else 0.0
    figure = Figure(figsize=(width, sum(heights) + below), layout="constrained")
    FigureCanvasAgg(figure)
    named: list[tuple[Any, Chart, Sequence[SeriesStyle]]] = []
    for line, part in zip(lines, _split(figure, heights, vertical=True), strict=True):
        widths = [panel.width for panel in line]
        rest = width - sum(widths)
        places = _split(part, [*widths, rest] if rest > 0.1 else widths, vertical=False)
        for panel, place in zip(line, places, strict=False):
            axes = place.add_subplot()
            if len(panels) > 1:
                axes.set_title(fill(clean(panel.chart.title, 120), int((panel.width - 0.6) / TITLE_LETTER)))
            if isinstance(panel.chart, Heatmap):
                draw_heatmap(axes, panel.chart, panel.labels)
                continue
            draw_chart(axes, panel.chart, panel.styles, panel.labels)
            if names_points(panel.chart):
                named.append((axes, panel.chart, panel.styles))
            if not is_shared:
                _add_legend(place, panel.legend(), panel.width)
    if is_shared:
        _add_legend(figure, shared, width)
    figure.draw_without_rendering()  # the layout must be final before names are placed
    figure.set_layout_engine("none")
    for axes, chart, styles in named:
        label_points(axes, chart, styles)
    return figure


def _arrange(panels: Sequence[_Panel]) -> list[list[_Panel]]:
    """Return the panels in lines, each with as many as fit on a page."""
    lines: list[list[_Panel]] = []
    for panel in panels:
        if lines and sum(other.width for other in lines[-1]) + panel.width <= PAGE:
            lines[-1].append(panel)
        else:
            lines.append([panel])
    return lines


def _split(figure: Any, sizes: Sequence[float], vertical: bool) -> list[Any]:
    """Split a figure into parts below or beside each other."""
    if len(sizes) == 1:
        return [figure]
    if vertical:
        return list(figure.subfigures(len(sizes), 1, height_ratios=sizes))
    return list(figure.subfigures(1, len(sizes), width_ratios=sizes))


def _legend_columns(legend: Mapping[str, Any], width: float) -> int:
    longest = max(map(len, legend), default=0)
    return max(1, min(len(legend), int((width - 0.2) / (0.45 + LEGEND_LETTER * longest))))


def _legend_height(legend: Mapping[str, Any], width: float) -> float:
    return 0.14 * math.ceil(len(legend) / _legend_columns(legend, width)) + 0.1 if legend else 0.0


def _add_legend(figure: Any, legend: Mapping[str, Any], width: float) -> None:
    """Add a legend below a figure or a part of it."""
    if legend:
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="outside lower center",
            ncols=_legend_columns(legend, width),
            handlelength=2.2,
            columnspacing=1.2,
            labelspacing=0.3,
            borderpad=0.2,
        )
