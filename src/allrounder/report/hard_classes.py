"""How the rows of a study do on hard classes: those that its networks recognise worst."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allrounder.config.fields import did_you_mean
from allrounder.errors import InputError
from allrounder.report.outcome import NATURAL, Column, Outcome
from allrounder.report.short_notes import warning_notes
from allrounder.report.study import StudyResults
from allrounder.report.tables import EMPTY, Cell, ResultTable, column_title


def hard_class_table(results: StudyResults, count: int, titles: Sequence[str] = ()) -> ResultTable:
    """Return the accuracy of every row on the `count` hardest classes and on the others, for the columns with
    these titles, or for all. Hard classes are those of lowest natural accuracy, averaged over all rows and
    seeds, so that no row is at a disadvantage by the choice."""
    hard = _find_hard_classes(results, count)
    columns = _select_columns(results, titles)
    parts = [_restrict(results, hard, is_hard=is_hard) for is_hard in (True, False)]
    header = ["row"]
    for column in columns:
        header += [f"{column_title(column)}, hard", "others"]
    rows = [
        (row, [_cell(part, row, column) for column in columns for part in parts]) for row in results.outcomes
    ]
    chosen = f"{'class' if count == 1 else 'classes'} {', '.join(map(str, hard))}"
    images = sorted({len(outcome) for outcome in _list_outcomes(parts[0])})
    notes = [
        results.describe_numbers(),
        f"Hard: the {chosen}, counted from 0, of lowest natural accuracy in the mean over all rows and "
        f"seeds; {' or '.join(map(str, images))} images.",
        *warning_notes(results),
    ]
    return ResultTable(header, rows, notes)


def _find_hard_classes(results: StudyResults, count: int) -> list[int]:
    """The numbers of the hard classes, ascending."""
    accuracies = np.mean([outcome.per_class(NATURAL) for outcome in _list_outcomes(results)], axis=0)
    if not 0 < count < len(accuracies):
        raise InputError(f"classes: got {count}, expected 1 to {len(accuracies) - 1}, fewer than there are")
    return sorted(int(k) for k in np.argsort(accuracies, kind="stable")[:count])


def _select_columns(results: StudyResults, titles: Sequence[str]) -> list[Column]:
    columns = {column_title(column): column for column in results.columns()}
    for title in titles:
        if title not in columns:
            known = ", ".join(columns)
            raise InputError(f"columns: got {title}, expected some of {known}{did_you_mean(title, columns)}")
    return [columns[title] for title in titles or columns]


def _restrict(results: StudyResults, classes: Sequence[int], *, is_hard: bool) -> StudyResults:
    """The outcomes of images of these classes, or of all others."""

    def restrict(outcome: Outcome) -> Outcome:
        rows = np.isin(outcome.label, classes) == is_hard
        return Outcome(outcome.label[rows], {name: p[rows] for name, p in outcome.predicted.items()})

    outcomes = {
        row: {seed: restrict(outcome) for seed, outcome in by_seed.items()}
        for row, by_seed in results.outcomes.items()
    }
    return StudyResults(outcomes)


def _cell(results: StudyResults, row: str, column: Column) -> Cell:
    cell = results.cell(row, column)
    return EMPTY if cell is None else cell.to_cell()


def _list_outcomes(results: StudyResults) -> list[Outcome]:
    return [outcome for by_seed in results.outcomes.values() for outcome in by_seed.values()]
