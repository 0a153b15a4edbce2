"""How the rows of a study do on hard classes: those that the reference row recognises worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from allrounder.config.fields import did_you_mean
from allrounder.errors import InputError
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.outcome import NATURAL, Column, Outcome
from allrounder.report.statistics import format_percent
from allrounder.report.study import StudyResults
from allrounder.report.tables import EMPTY, Cell, ResultTable, column_title

BoolArray: TypeAlias = npt.NDArray[np.bool_]


def hard_class_table(results: StudyResults, count: int, titles: Sequence[str] = ()) -> ResultTable:
    """Return the accuracy of every row on the `count` hardest classes and on the others, for the columns with
    these titles, or for all. Hard classes are those of lowest natural accuracy in the reference row, averaged
    over its seeds."""
    hard = _find_hard_classes(results, count)
    columns = _select_columns(results, titles)
    header = ["row"]
    for column in columns:
        header += [f"{column_title(column)}, hard", "others"]
    rows = [
        (row, [cell for column in columns for cell in _cells(by_seed, column, hard)])
        for row, by_seed in results.outcomes.items()
    ]
    images = {f"{int(np.isin(outcome.label, hard).sum())}" for outcome in _all_outcomes(results)}
    names = ", ".join(map(str, hard))
    reference = f'lowest natural accuracy of "{results.reference_row()}"'
    notes = [
        f"Percent of images classified correctly, means over seeds. Hard: the classes {names}, numbered from "
        f"0, with the {reference}; {' or '.join(sorted(images))} images of each evaluation."
    ]
    return ResultTable(header, rows, notes)


def _find_hard_classes(results: StudyResults, count: int) -> list[int]:
    """The numbers of the hard classes, ascending."""
    by_seed = list(results.outcomes[results.reference_row()].values())
    accuracies = np.mean([outcome.per_class(NATURAL) for outcome in by_seed], axis=0)
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


def _cells(by_seed: Mapping[int, Outcome], column: Column, hard: Sequence[int]) -> list[Cell]:
    """The accuracy on hard classes, and on the others."""
    outcomes = [outcome for outcome in by_seed.values() if column in outcome.columns()]
    if not outcomes:
        return [EMPTY, EMPTY]
    accuracies = [_split_accuracy(outcome, column, np.isin(outcome.label, hard)) for outcome in outcomes]
    return [Cell(format_percent(accuracy)) for accuracy in np.mean(accuracies, axis=0)]


def _split_accuracy(outcome: Outcome, column: Column, is_hard: BoolArray) -> FloatArray:
    per_image = outcome.per_image_accuracy(*column)
    return np.array([per_image[is_hard].mean(), per_image[~is_hard].mean()])


def _all_outcomes(results: StudyResults) -> list[Outcome]:
    return [outcome for by_seed in results.outcomes.values() for outcome in by_seed.values()]
