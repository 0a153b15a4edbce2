"""The model of a table, and one writer for each style: text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from allrounder.report.outcome import THREAT_SUMMARIES, Column
from allrounder.report.statistics import format_percent

SUMMARY_NOTE = (
    "Worst: correct under every threat of the attack at once (the true union); mean: the average over "
    "its threats (what Generalist++ calls Union)."
)
LATEX_ESCAPES = str.maketrans(
    {sign: rf"\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


@final
@dataclass(frozen=True)
class Marks:
    """How a style writes the best and second best number of a column, intervals, and differences."""

    best: str
    second: str
    interval: str
    differs: str
    """The mark of a number that differs significantly from that of the reference row."""


MARKS = {
    "text": Marks("{}", "{}", " ({}-{})", "*"),
    "markdown": Marks("**{}**", "<ins>{}</ins>", " ({}-{})", "\u2020"),
    "latex": Marks(r"\textbf{{{}}}", r"\underline{{{}}}", r" {{\scriptsize ({}--{})}}", r"$^\dagger$"),
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
class ResultTable:
    """A header, named rows of cells, and notes, one sentence a line."""

    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    notes: Sequence[str] = ()
    latex_header: Sequence[Sequence[str]] = ()
    """The lines of the LaTeX header, already escaped, if they differ from the header."""


def column_key(column: Column) -> str:
    """A column in CSV and JSON files, and as the papers' numbers name it."""
    return " ".join(filter(None, column))


def column_title(column: Column) -> str:
    """A column in Markdown and LaTeX."""
    return column_key(column) + (" (the papers' Union)" if column[1] == "mean" else "")


def summary_notes(columns: Sequence[Column]) -> list[str]:
    """What the summaries over several threats mean, if there are any."""
    return [SUMMARY_NOTE] if any(summary in THREAT_SUMMARIES for _, summary in columns) else []


def format_rows(table: ResultTable, style: str) -> list[list[str]]:
    """The rows as texts, with the best and the second best of every column marked."""
    columns = [
        _format_column(cells, style) for cells in zip(*(cells for _, cells in table.rows), strict=True)
    ]
    return [[name, *(column[row] for column in columns)] for row, (name, _) in enumerate(table.rows)]


def _format_column(cells: Sequence[Cell], style: str) -> list[str]:
    """The texts of a column; nothing is marked as the best if all percents are equal."""
    marks = MARKS[style]
    order = sorted({cell.rank for cell in cells if cell.rank is not None}, key=float, reverse=True)
    by_rank = dict(zip(order, (marks.best, marks.second), strict=False)) if len(order) > 1 else {}
    texts: list[str] = []
    for cell in cells:
        text = by_rank.get(cell.rank or "", "{}").format(cell.text)
        if cell.interval is not None:
            text += marks.interval.format(*map(format_percent, cell.interval))
        text += marks.differs if cell.differs else ""
        texts.append(wrap_cell(text) if style == "text" and cell.rank is not None else text)
    return texts


def wrap_cell(text: str) -> str:
    """Put what follows a number or a name on the next line, so that columns fit on a screen."""
    return text.replace(" ", "\n", 1)


def to_markdown(table: ResultTable) -> str:
    """The table for a document, with the notes below it."""
    rule = [":--", *["--:"] * (len(table.header) - 1)]
    rows = [table.header, rule, *format_rows(table, "markdown")]
    lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]
    return "\n".join([*lines, "", *table.notes]) + "\n"


def to_latex(table: ResultTable) -> str:
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
    return text.translate(LATEX_ESCAPES)


def to_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows, the header first; numbers in full precision."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_json(content: Any) -> str:
    """Indented JSON, numbers in full precision."""
    return json.dumps(content, indent=2) + "\n"
