"""The sections of the page with figures: charts of all rows, then the charts of each row."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, final

from allrounder.report.chart import AnyChart, Heatmap
from allrounder.report.chart_table import chart_table
from allrounder.report.draw_plotly import to_plotly
from allrounder.report.entry import Results
from allrounder.report.figures import FigureKind

MAX_OPEN_ROWS = 8
"""The charts of a row are folded away if there are more rows than this."""


@final
@dataclass(frozen=True)
class NumbersColumn:
    """A column of the table below a chart."""

    title: str
    row: str
    """The row of the report that it belongs to; empty for none."""


@final
@dataclass(frozen=True)
class NumbersLine:
    """A line of the table below a chart."""

    cells: tuple[str, ...]
    row: str
    """The row of the report that it belongs to; empty for none."""


@final
@dataclass(frozen=True)
class ChartBlock:
    """A chart on the page, with its numbers."""

    id: str
    title: str
    about: str
    row: str
    height: int
    """In pixels."""
    plot: str
    """What plotly draws, as JSON that is safe inside a script element."""
    columns: tuple[NumbersColumn, ...]
    lines: tuple[NumbersLine, ...]


@final
@dataclass(frozen=True)
class RowCharts:
    """The charts that belong to one row only."""

    row: str
    charts: tuple[ChartBlock, ...]
    is_open: bool


@final
@dataclass(frozen=True)
class FigureSection:
    """One figure: a heading and its charts."""

    name: str
    title: str
    about: str
    charts: tuple[ChartBlock, ...]
    by_row: tuple[RowCharts, ...]


def build_sections(
    results: Results, figures: Mapping[str, FigureKind], colors: Mapping[str, str]
) -> list[FigureSection]:
    """Return the sections of all figures that have something to show, in their order."""
    numbers = count(1)
    sections = [_build_section(name, kind, results, colors, numbers) for name, kind in figures.items()]
    return [section for section in sections if section.charts or section.by_row]


def list_missing(
    sections: Sequence[FigureSection], figures: Mapping[str, FigureKind]
) -> list[tuple[str, str]]:
    """Return the titles of figures that have nothing to show, and what they need."""
    names = [section.name for section in sections]
    return [(kind.title, kind.missing) for name, kind in figures.items() if name not in names]


def _build_section(
    name: str, kind: FigureKind, results: Results, colors: Mapping[str, str], numbers: Iterator[int]
) -> FigureSection:
    rows = [entry.name for entry in results.entries]
    charts = kind.build(results)
    blocks = [_build_chart(chart, f"chart-{next(numbers)}", colors, rows) for chart in charts]
    shared = tuple(block for block in blocks if block.row not in rows)
    own = {row: tuple(block for block in blocks if block.row == row) for row in rows}
    is_open = sum(map(bool, own.values())) <= MAX_OPEN_ROWS
    by_row = tuple(RowCharts(row, charts, is_open) for row, charts in own.items() if charts)
    return FigureSection(name, kind.title, kind.about, shared, by_row)


def _build_chart(chart: AnyChart, id: str, colors: Mapping[str, str], rows: Collection[str]) -> ChartBlock:
    header, lines = chart_table(chart)
    plot = to_plotly(chart, colors)
    row_of = {} if chart.row else _find_rows(chart, rows)
    return ChartBlock(
        id,
        chart.title,
        chart.about,
        chart.row,
        plot["layout"]["height"],
        embed_json(plot),
        tuple(NumbersColumn(title, row_of.get(title, "")) for title in header),
        tuple(NumbersLine(tuple(line), row_of.get(line[0], "")) for line in lines),
    )


def _find_rows(chart: AnyChart, rows: Collection[str]) -> dict[str, str]:
    """The rows of the report that the names in the table of a chart belong to: categories or series."""
    named = {row: row for row in rows}
    return named if isinstance(chart, Heatmap) else named | {s.name: s.row for s in chart.series}


def embed_json(value: Any) -> str:
    """Return JSON that cannot end the script element that holds it, nor start a comment in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
