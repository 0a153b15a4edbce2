"""Accuracy on corrupted images, and how often predictions change along perturbations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from allrounder.report.chart import AnyChart, Axis, Heatmap
from allrounder.report.corruption_metrics import (
    ALL_SEVERITIES,
    Predictions,
    accuracy_by_corruption,
    metrics_by_perturbation,
    shift_ids,
)
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind
from allrounder.report.outcome import Outcome

Shares: TypeAlias = Mapping[str, float]
"""In [0, 1], by corruption or perturbation."""
SOURCES = ("official", "generated")
"""Where changed images come from; numbers of different sources are never in one chart."""


def build_corruptions(results: Results) -> list[AnyChart]:
    """Plot the highest severity, the mean over all five severities, and the flip rates of perturbations."""
    charts: list[AnyChart] = []
    for source in SOURCES:
        charts += _corruption_charts(results.evaluated, source)
        charts += _flip_charts(results.evaluated, source)
    return charts


def _corruption_charts(entries: Sequence[Entry], source: str) -> list[AnyChart]:
    outcomes = [outcome for entry in entries for outcome in entry.outcomes.values()]
    highest = max(
        (shift.number for o in outcomes for shift in shift_ids(_of_set(o, "c", source), "c")), default=0
    )

    def at_highest(outcome: Outcome) -> Shares:
        accuracies = accuracy_by_corruption(_of_set(outcome, "c", source), outcome.label)
        return {name: by[highest] for name, by in accuracies.items() if highest in by}

    def over_all(outcome: Outcome) -> Shares:
        accuracies = accuracy_by_corruption(_of_set(outcome, "c", source), outcome.label).items()
        return {name: statistics.fmean(by.values()) for name, by in accuracies if {*ALL_SEVERITIES} == {*by}}

    about = f"Percent of images classified correctly, {source} corruptions"
    kinds = (
        (f"severity-{highest}", f"of severity {highest}", at_highest),
        ("mean", "averaged over severities 1 to 5", over_all),
    )
    return [
        chart
        for key, words, compute in kinds
        for chart in _heatmap(
            f"corruptions-{key}-{source}",
            f"Corruptions {words} ({source})",
            f"{about} {words}.",
            entries,
            compute,
        )
    ]


def _flip_charts(entries: Sequence[Entry], source: str) -> list[AnyChart]:
    def flip_rates(outcome: Outcome) -> Shares:
        metrics = metrics_by_perturbation(_of_set(outcome, "p", source), outcome.label)
        return {name: flips for name, (_, flips) in metrics.items()}

    about = (
        "Percent of frames whose predicted class differs from that of the frame before; of noise, from that "
        "of the first frame. Lower is better."
    )
    title = f"Flip rates of perturbations ({source})"
    return _heatmap(f"corruptions-flips-{source}", title, about, entries, flip_rates)


def _of_set(outcome: Outcome, kind: str, source: str) -> Predictions:
    """The predictions on one set of changed images."""
    return {name: array for name, array in outcome.predicted.items() if f"@{kind}-{source}:" in name}


def _heatmap(
    name: str, title: str, about: str, entries: Sequence[Entry], compute: Callable[[Outcome], Shares]
) -> list[AnyChart]:
    """Means over seeds in percent, one row for each entry with numbers; nothing if there is none."""
    rows = {entry.name: _mean_over_seeds(map(compute, entry.outcomes.values())) for entry in entries}
    rows = {row: shares for row, shares in rows.items() if shares}
    columns = tuple(dict.fromkeys(column for shares in rows.values() for column in shares))
    values = tuple(
        tuple(100 * shares.get(column, math.nan) for column in columns) for shares in rows.values()
    )
    axes = Axis("change of the images"), Axis("row")
    return [Heatmap(name, title, about, *axes, columns, tuple(rows), values)] if rows else []


def _mean_over_seeds(outcomes: Iterable[Shares]) -> Shares:
    """The mean of every number over the seeds that have it."""
    numbers: dict[str, list[float]] = {}
    for shares in outcomes:
        for name, share in shares.items():
            numbers.setdefault(name, []).append(share)
    return {name: statistics.fmean(values) for name, values in numbers.items()}


CORRUPTIONS = FigureKind(
    "Corruptions",
    "Accuracy on images that were changed without an adversary.",
    build_corruptions,
    "no run has corrupted images; evaluate with --ood c",
)
