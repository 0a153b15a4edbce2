"""Which classes the networks confuse."""

from __future__ import annotations

import numpy as np

from allrounder.report.chart import AnyChart, Axis, Heatmap
from allrounder.report.confusion import confusion, confusion_percents
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind, chart_name, unique_slugs
from allrounder.report.figures.classwise import MAX_CLASSES, class_names, hardest_classes, mean_over_seeds
from allrounder.report.figures.judged import Judged, attack_title, judge_entries, restrict, threat_of
from allrounder.report.outcome import NATURAL

OTHERS = "other classes"
"""The column of the classes that are not shown."""


def build_confusion(results: Results) -> list[AnyChart]:
    """Plot the matrix of natural predictions of every row, and those under each threat."""
    slugs = unique_slugs(entry.name for entry in results.evaluated)
    judged = judge_entries(results.evaluated)
    charts: list[AnyChart] = []
    for entry in results.evaluated:
        charts += _natural_matrices(entry, slugs[entry.name])
        if judged is not None:
            charts += _robust_matrices(entry, slugs[entry.name], judged)
    return charts


def _natural_matrices(entry: Entry, name: str) -> list[AnyChart]:
    if not (natural := restrict(entry, [])).outcomes:
        return []
    title = f"Natural predictions: {entry.name}"
    return [_matrix(natural, NATURAL, f"confusion-natural-{name}", title, "")]


def _robust_matrices(entry: Entry, name: str, judged: Judged) -> list[AnyChart]:
    """One matrix for each threat; none if the row lacks one of them."""
    if entry.name in judged.left_out:
        return []
    return [
        _matrix(
            restrict(entry, judged.probes),
            probe,
            f"{chart_name('confusion', threat_of(probe))}--{name}",
            f"Predictions under {threat_of(probe)}: {entry.name}",
            f"Attack: {attack_title(judged.attack)}.",
        )
        for probe in judged.probes
    ]


def _matrix(entry: Entry, probe: str, name: str, title: str, notes: str) -> Heatmap:
    """The mean over seeds of the percents of a probe."""
    names = class_names(entry)
    percents = mean_over_seeds(
        entry,
        lambda outcome: confusion_percents(confusion(outcome.label, outcome.predicted[probe], len(names))),
    )
    shown = hardest_classes([np.diag(percents)])
    about = "Percent of the images of every true class by the class that is predicted."
    columns = tuple(names[index] for index in shown)
    values: FloatArray = percents[np.ix_(shown, shown)]
    if len(shown) < len(names):
        about += f" The {MAX_CLASSES} of {len(names)} classes with the lowest accuracies."
        others = percents[shown].sum(1) - values.sum(1)
        values = np.column_stack([values, np.maximum(others, 0)])
    return Heatmap(
        name,
        title,
        f"{about} {notes}".strip(),
        Axis("predicted class"),
        Axis("true class"),
        columns if len(shown) == len(names) else (*columns, OTHERS),
        columns,
        tuple(map(tuple, values.tolist())),
        row=entry.name,
    )


CONFUSION = FigureKind(
    "Confusion",
    "Which classes are taken for which others.",
    build_confusion,
    "no run was evaluated; evaluate one with: allrounder eval RUN",
)
