"""Mixtures of learners after training: natural against robust accuracy on held-out images."""

from __future__ import annotations

from dataclasses import replace

from allrounder.report.chart import AnyChart
from allrounder.report.dial import dial_chart
from allrounder.report.entry import Results
from allrounder.report.figures.base import FigureKind, unique_slugs


def build_dials(results: Results) -> list[AnyChart]:
    """Plot the mixtures of the first seed of every row that has some."""
    charts: list[AnyChart] = []
    slugs = unique_slugs(entry.name for entry in results.entries)
    for entry in results.entries:
        training = next(iter(entry.trainings.values()), None)
        if training is not None and training.mixtures:
            chart = dial_chart(training.mixtures)
            title = f"{chart.title}: {entry.name}"
            charts.append(replace(chart, name=f"dial-{slugs[entry.name]}", title=title, row=entry.name))
    return charts


DIAL = FigureKind(
    "Mixtures after training",
    "What other shares of the learners would have given, on held-out images.",
    build_dials,
    "no run has measured mixtures; measure them with: allrounder dial RUN",
)
