"""The accuracy of every class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import MAX_NAMES, NATURAL_AXIS, FigureKind
from allrounder.report.figures.classwise import MAX_CLASSES, class_accuracies, class_names, hardest_classes
from allrounder.report.figures.judged import judge_entries
from allrounder.report.outcome import NATURAL, Column


def build_classes(results: Results) -> list[AnyChart]:
    """Plot natural accuracies by class, then those under attack, for every set of classes."""
    natural = [entry for entry in results.evaluated if entry.cell((NATURAL, None))]
    charts = _charts("natural", natural, (NATURAL, None), NATURAL_AXIS, "")
    judged = judge_entries(results.evaluated)
    if judged is not None:
        charts += _charts("robust", judged.entries, judged.column, judged.axis(), judged.notes())
    return charts


def _charts(kind: str, entries: Sequence[Entry], column: Column, axis: Axis, notes: str) -> list[AnyChart]:
    """One chart for the rows of every set of classes: rows of several datasets do not share bars."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(class_names(entry), []).append(entry)
    charts: list[AnyChart] = []
    for number, (names, rows) in enumerate(groups.items(), start=1):
        accuracies = {entry.name: class_accuracies(entry, column) for entry in rows}
        shown = hardest_classes(list(accuracies.values()))
        x = tuple(names[index] for index in shown)
        series = tuple(
            Series(row, x, tuple(by_class[shown].tolist()), mark="bars", row=row)
            for row, by_class in accuracies.items()
        )
        few = f"The {MAX_CLASSES} of {len(names)} classes with the lowest accuracies."
        sentences = (
            few if len(shown) < len(names) else "",
            _describe_worst(rows, column, accuracies, names),
            notes,
        )
        name = f"classes-{kind}" if number == 1 else f"classes-{kind}-{number}"
        title = f"{kind.capitalize()} accuracy by class"
        about = " ".join(filter(None, sentences))
        charts.append(Chart(name, title, about, Axis("class"), axis, series))
    return charts


def _describe_worst(
    entries: Sequence[Entry], column: Column, accuracies: Mapping[str, FloatArray], names: Sequence[str]
) -> str:
    """Name the class of lowest accuracy of every row; of many rows, only that of the most accurate one."""
    rows = [entry.name for entry in entries]
    subject = "Worst class"
    if len(rows) > MAX_NAMES:
        means = {entry.name: cell.mean for entry in entries if (cell := entry.cell(column))}
        rows = [max(rows, key=means.__getitem__)]
        subject = "Worst class of the most accurate row"
    texts = [
        f"{_name_lowest(accuracies[row], names)} ({row}, {np.nanmin(accuracies[row]):.1f}%)" for row in rows
    ]
    return f"{subject}: {'; '.join(texts)}."


def _name_lowest(accuracies: FloatArray, names: Sequence[str]) -> str:
    """The class of lowest accuracy, with the number of others that are as low."""
    lowest: list[int] = np.flatnonzero(accuracies == np.nanmin(accuracies)).tolist()
    others = len(lowest) - 1
    return names[lowest[0]] + (f" and {others} more" if others else "")


CLASSES = FigureKind(
    "Classes",
    "The accuracy of every class, natural and under attack.",
    build_classes,
    "no run was evaluated; evaluate one with: allrounder eval RUN",
)
