"""Tables of single classes: their accuracies, what they are confused with, and the worst of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from allrounder.errors import InputError
from allrounder.report.confusion import confusion
from allrounder.report.corruption_metrics import FloatArray, parse_shift_id
from allrounder.report.outcome import Column, IntArray, Outcome
from allrounder.report.statistics import format_percent
from allrounder.report.tables import EMPTY, Cell, ResultTable, column_key, summary_notes

MAX_MATRIX_CLASSES = 20
"""With more classes, a matrix is too wide to read, and its most frequent confusions are listed instead."""
MAX_PAIRS = 20
"""Confusions that are listed instead of a matrix."""
MAX_CONFUSED = 3
"""Classes that the worst class is confused with, in a table."""

ClassTable: TypeAlias = Callable[[Outcome, Sequence[str]], list[ResultTable]]


def accuracy_by_class(outcome: Outcome, classes: Sequence[str]) -> list[ResultTable]:
    """One table: the accuracy of every class in every column, the worst class of a column marked."""
    _check_classes(outcome, classes)
    columns = outcome.columns()
    accuracies = [_class_accuracy(outcome, column, len(classes)) for column in columns]
    counts = np.bincount(outcome.label, minlength=len(classes))
    rows: list[tuple[str, Sequence[Cell]]] = []
    for k, name in enumerate(classes):
        rows.append((name, [Cell(str(counts[k])), *(_percent_cell(shares, k) for shares in accuracies)]))
    everything = [Cell(format_percent(outcome.accuracy(*column))) for column in columns]
    rows.append(("all", [Cell(str(len(outcome))), *everything]))
    notes = ["Percent of the images of a class that are classified correctly.", *summary_notes(columns)]
    return [ResultTable(["class", "images", *map(column_key, columns)], rows, notes)]


def confusion_tables(outcome: Outcome, classes: Sequence[str]) -> list[ResultTable]:
    """The confusion matrix on natural images, and one for every attack under every threat."""
    _check_classes(outcome, classes)
    build = _confusion_matrix if len(classes) <= MAX_MATRIX_CLASSES else _confusion_pairs
    attacked = {name: array for name, array in outcome.predicted.items() if parse_shift_id(name) is None}
    return [
        build(name, confusion(outcome.label, predicted, len(classes)), classes)
        for name, predicted in attacked.items()
    ]


def worst_classes(outcome: Outcome, classes: Sequence[str]) -> list[ResultTable]:
    """One table: the class with the lowest accuracy in every column, and what it is taken for most often."""
    _check_classes(outcome, classes)
    columns = outcome.columns()
    rows: list[tuple[str, Sequence[Cell]]] = []
    for column in columns:
        accuracies = _class_accuracy(outcome, column, len(classes))
        worst = int(np.nanargmin(accuracies))
        equal = int((accuracies == accuracies[worst]).sum()) - 1
        rows.append(
            (
                column_key(column),
                [
                    Cell(classes[worst] + (f" (and {equal} more)" if equal else "")),
                    Cell(format_percent(accuracies[worst]), interval=_class_interval(outcome, column, worst)),
                    Cell(_describe_confusions(outcome, column, worst, classes)),
                ],
            )
        )
    notes = [
        "Percent of the images of the class that are classified correctly, with 95% intervals, and the "
        "classes that its images are taken for most often, with counts over all threats of a column.",
        *summary_notes(columns),
    ]
    return [ResultTable(["column", "worst class", "accuracy", "taken for"], rows, notes)]


CLASS_TABLES: Mapping[str, ClassTable] = {
    "classes": accuracy_by_class,
    "confusion": confusion_tables,
    "worst": worst_classes,
}
"""The tables of `allrounder eval --table`."""


def _check_classes(outcome: Outcome, classes: Sequence[str]) -> None:
    highest = max(int(array.max(initial=-1)) for array in (outcome.label, *outcome.predicted.values()))
    if not len(outcome) or highest >= len(classes):
        got = f"got {len(classes)} names and {len(outcome)} images with classes up to {highest}"
        raise InputError(f"classes: {got}, expected images, and one name for every class")


def _class_accuracy(outcome: Outcome, column: Column, classes: int) -> FloatArray:
    """The accuracy of every class; NaN for a class without images, also for the last ones."""
    known = outcome.per_class(*column)
    return np.concatenate([known, np.full(classes - len(known), np.nan)])


def _percent_cell(shares: FloatArray, k: int) -> Cell:
    """The accuracy of class k; the lowest of all is marked, unless all are equal."""
    if np.isnan(shares[k]):
        return EMPTY
    lowest, highest = np.nanmin(shares), np.nanmax(shares)
    mark = " (worst)" if shares[k] == lowest < highest else ""
    return Cell(format_percent(shares[k]) + mark)


def _confusion_matrix(name: str, counts: IntArray, classes: Sequence[str]) -> ResultTable:
    """Rows are classes, columns are predictions; columns have numbers, because names are too wide."""
    rows = [
        (f"{k} {classes[k]}", [Cell(str(count)) for count in row]) for k, row in enumerate(counts.tolist())
    ]
    notes = [f"{name}: number of images of every class (row) by the class that is predicted (column)."]
    return ResultTable([name, *map(str, range(len(classes)))], rows, notes)


def _confusion_pairs(name: str, counts: IntArray, classes: Sequence[str]) -> ResultTable:
    """The most frequent confusions, a row each."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(position), len(classes)) for position in order]
    rows = [
        (classes[a], [Cell(classes[b]), Cell(str(wrong[a, b])), Cell(str(counts[a].sum()))])
        for a, b in pairs
        if wrong[a, b]
    ]
    notes = [f"{name}: the {len(rows)} most frequent of {int((wrong > 0).sum())} confusions of two classes."]
    return ResultTable([name, "taken for", "images", "images of the class"], rows, notes)


def _class_interval(outcome: Outcome, column: Column, k: int) -> tuple[float, float]:
    """The 95% interval of the accuracy of a class."""
    rows = outcome.label == k
    predicted = {name: array[rows] for name, array in outcome.predicted.items()}
    return Outcome(outcome.label[rows], predicted).interval(*column)


def _describe_confusions(outcome: Outcome, column: Column, k: int, classes: Sequence[str]) -> str:
    """The wrong classes that are predicted most often for images of class k, with counts."""
    counts = np.zeros(len(classes), dtype=np.int64)
    for name in outcome.probe_names(*column):
        counts += np.bincount(outcome.predicted[name][outcome.label == k], minlength=len(classes))
    counts[k] = 0
    order = np.argsort(-counts, kind="stable")[:MAX_CONFUSED]
    return ", ".join(f"{classes[other]} {counts[other]}" for other in order if counts[other]) or "-"
