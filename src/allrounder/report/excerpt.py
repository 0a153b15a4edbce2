"""Part of the table of a study, for documents: some columns, some rows, and short notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, final, get_args

from allrounder.config.fields import did_you_mean
from allrounder.errors import InputError
from allrounder.report.short_notes import short_notes
from allrounder.report.study import StudyResults, render_study
from allrounder.report.tables import (
    ResultTable,
    column_title,
    summary_notes,
    to_latex,
    to_markdown,
)

NoteLevel: TypeAlias = Literal["all", "short", "no"]
"""All notes, those that a reader must not miss, or none."""
STYLES = {"markdown": to_markdown, "latex": to_latex}
COLUMN_NOTES = {"cost": "Cost: ", "minutes": "Minutes: ", "paper": "Paper: "}
"""The beginning of the note that explains a column."""


@final
@dataclass(frozen=True)
class Excerpt:
    """What to show of the table of a study."""

    columns: tuple[str, ...] = ()
    """Their titles in the table; all if empty."""
    rows: tuple[str, ...] = ()
    """Their labels; all if empty."""
    notes: NoteLevel = "all"

    @classmethod
    def parse(cls, columns: str = "", rows: str = "", notes: str = "all") -> Excerpt:
        """Read columns separated by commas, such as "natural, aa worst", and rows separated by semicolons."""
        if notes not in get_args(NoteLevel):
            raise InputError(f"notes: got {notes!r}, expected one of {', '.join(get_args(NoteLevel))}")
        titles = re.split(r",(?![^(]*\))", columns)  # titles have commas within parentheses
        return cls(_strip_names(titles), _strip_names(rows.split(";")), cast(NoteLevel, notes))

    def to_table(self, results: StudyResults, style: str = "markdown") -> ResultTable:
        """Return the table; the best and second best numbers are those of the rows that are shown."""
        table = select_cells(results.to_table(style), self.columns, self.rows)
        mark_style = "markdown" if style == "markdown" else "text"  # as in StudyResults.to_table
        if self.notes == "no" or not table.rows:
            return replace(table, notes=())
        if self.notes == "short":
            return replace(table, notes=short_notes(results, mark_style, self.rows, self.columns))
        hidden = self._list_hidden_notes(results, table.header)
        notes = results.notes(mark_style, self.rows, self.columns)
        return replace(table, notes=[note for note in notes if not note.startswith(hidden)])

    def _list_hidden_notes(self, results: StudyResults, titles: Sequence[str]) -> tuple[str, ...]:
        """Return the beginnings of notes that explain columns which are not among the titles."""
        columns = results.columns()
        shown = [column for column in columns if column_title(column) in titles]
        hidden = [start for title, start in COLUMN_NOTES.items() if title not in titles]
        return (*hidden, *(note for note in summary_notes(columns) if note not in summary_notes(shown)))


def select_cells(table: ResultTable, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> ResultTable:
    """Return the columns and rows of these names, in this order; all if none are named. Of columns with the
    same name, such as "paper", it is the first one to the right of the column named before."""
    titles, by_name = list(table.header[1:]), dict(table.rows)
    chosen: list[int] = []
    for title in columns:
        _check_known("column", title, titles)
        matching = [index for index, name in enumerate(titles) if name == title]
        index = next((i for i in matching if i > max(chosen[-1:], default=-1)), matching[0])
        if index in chosen:
            raise InputError(f'columns: got "{title}" twice, expected every column once')
        chosen.append(index)
    for position, row in enumerate(rows):
        _check_known("row", row, list(by_name))
        if row in rows[:position]:
            raise InputError(f'rows: got "{row}" twice, expected every row once')
    indices = chosen if columns else range(len(titles))
    return replace(
        table,
        header=[table.header[0], *(titles[index] for index in indices)],
        rows=[(row, [by_name[row][index] for index in indices]) for row in rows or by_name],
        latex_header=() if columns else table.latex_header,
    )


def _check_known(kind: str, got: str, names: Sequence[str]) -> None:
    if got not in names:
        known = list(dict.fromkeys(names))
        expected = f"expected some of {'; '.join(known)}{did_you_mean(got, known)}"
        raise InputError(f'{kind}s: the table has no {kind} "{got}", {expected}')


def _strip_names(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in names if name.strip())


def render_excerpt(results: StudyResults, excerpt: Excerpt, style: str = "markdown") -> str:
    """Return an excerpt in the style markdown or latex; the styles csv and json have the whole table only."""
    if style in STYLES:
        return STYLES[style](excerpt.to_table(results, style))
    if excerpt != Excerpt():
        problem = f"got style {style!r}, expected {' or '.join(STYLES)}"
        raise InputError(f"columns, rows, notes: {problem}; the other styles have the whole table only")
    return render_study(results, style)
