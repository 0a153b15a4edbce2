"""The model of a table, and one writer for each style: text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from allrounder.report.statistics import format_percent

COLUMN_TITLES = {"worst": "worst", "mean": "mean (the papers' Union)"}
"""How Markdown and LaTeX call the summaries over several threats."""
SUMMARY_NOTE = (
    "Worst: correct under every threat of the attack at once (the true union); mean: the average over "
    "its threats (what Generalist++ calls Union)."
)
LATEX_ESCAPES = {sign: rf"\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


@final
@dataclass(frozen=True)
class Style:
    """How a style writes the best and second best number of a column, intervals, and differences."""

    best: str
    second: str
    interval: str
    differs: str
    """The mark of a number that differs significantly from that of the reference row."""


STYLES = {
    "text": Style("{}", "{}", " ({}-{})", "*"),
    "markdown": Style("**{}**", "<ins>{}</ins>", " ({}-{})", "\u2020"),
    "latex": Style(r"\textbf{{{}}}", r"\underline{{{}}}", r" {{\scriptsize ({}--{})}}", r"$^\dagger$"),
}


@final
@dataclass(frozen=True)
class Cell:
    """One entry of a table; cells with a rank compete for the marks of the best and second best."""

    text: str
    rank: str | None = None
    """The percent, as shown, by which the cells of a column are ranked."""
    interval: tuple[float, float] | None = None
    """The ends of the 95% interval, in [0, 1], written after the text."""
    differs: bool = False
    """Whether the number differs significantly from that of the reference row."""


EMPTY = Cell("-")


@final
@dataclass(frozen=True, eq=False)
class Table:
    """A header, named rows of cells, and notes, one sentence a line."""

    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    notes: Sequence[str] = ()
    latex_header: Sequence[Sequence[str]] = ()
    """The lines of the LaTeX header, already escaped, if they differ from the header."""


def format_rows(table: Table, style: str) -> list[list[str]]:
    """The rows as texts, with the best and the second best of every column marked."""
    columns = zip(*(cells for _, cells in table.rows), strict=True)
    marks = [_rank_marks(cells, STYLES[style]) for cells in columns]
    return [
        [name, *(_format_cell(cell, by_rank, style) for cell, by_rank in zip(cells, marks, strict=True))]
        for name, cells in table.rows
    ]


def _rank_marks(cells: Sequence[Cell], form: Style) -> dict[str, str]:
    """The marks of the best and second best percents of a column; none if all are equal."""
    order = sorted({cell.rank for cell in cells if cell.rank is not None}, key=float, reverse=True)
    return dict(zip(order, (form.best, form.second), strict=False)) if len(order) > 1 else {}


def _format_cell(cell: Cell, marks: Mapping[str, str], style: str) -> str:
    form = STYLES[style]
    text = marks.get(cell.rank or "", "{}").format(cell.text)
    if cell.interval is not None:
        text += form.interval.format(*map(format_percent, cell.interval))
    if cell.differs:
        text += form.differs
    return wrap_cell(text) if style == "text" and cell.rank is not None else text


def wrap_cell(text: str) -> str:
    """Put what follows a number or a name on the next line, so that columns fit on a screen."""
    return text.replace(" ", "\n", 1)


def to_markdown(table: Table) -> str:
    """The table for a document, with the notes below it."""
    rule = [":--", *["--:"] * (len(table.header) - 1)]
    rows = [table.header, rule, *format_rows(table, "markdown")]
    lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]
    return "\n".join([*lines, "", *table.notes]) + "\n"


def to_latex(table: Table) -> str:
    """The table for a paper, with the notes below it; it needs the package booktabs."""
    header = table.latex_header or [[escape_latex(title) for title in table.header]]
    body = [
        [escape_latex(name), *(text.replace("+-", r"$\pm$") for text in texts)]
        for name, *texts in format_rows(table, "latex")
    ]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"\toprule",
        *(" & ".join(row) + r" \\" for row in header),
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        *(r"\bottomrule", r"\end{tabular}", "", r"{\footnotesize"),
        *map(escape_latex, table.notes),
        r"\par}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Escape the characters that are commands in LaTeX."""
    return "".join(LATEX_ESCAPES.get(sign, sign) for sign in text)


def to_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows, the header first, separated by commas; numbers in full precision."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_json(content: Any) -> str:
    """Indented JSON, numbers in full precision."""
    return json.dumps(content, indent=2) + "\n"
