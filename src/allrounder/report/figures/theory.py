"""What the theory of Generalist++ speaks of, over the training: distances, drift and regret."""

from __future__ import annotations

from dataclasses import replace

from allrounder.report.chart import AnyChart
from allrounder.report.entry import Results
from allrounder.report.figures.base import FigureKind, unique_slugs
from allrounder.report.theory import theory_charts


def build_theory(results: Results) -> list[AnyChart]:
    """Plot the first seed of every row that has several learners."""
    charts: list[AnyChart] = []
    slugs = unique_slugs(entry.name for entry in results.entries)
    for entry in results.entries:
        training = next(iter(entry.trainings.values()), None)
        if training is None or len(training.learners) < 2:
            continue
        for chart in theory_charts(training.events, training.learners, row=entry.name):
            name, title = f"{chart.name}-{slugs[entry.name]}", f"{chart.title}: {entry.name}"
            charts.append(replace(chart, name=name, title=title))
    return charts


THEORY = FigureKind(
    "Theory",
    "The learners' distances from the global weights, their drift, and the trade-off regret.",
    build_theory,
    "no run has several learners and a logged epoch; name the folder of such a run or of a study",
)
