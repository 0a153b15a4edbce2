"""What happens during the trainings: losses, accuracies, learning rates and shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from allrounder.report.chart import AnyChart, Axis, Chart, Mark, Series
from allrounder.report.curves import (
    Curve,
    learner_curves,
    loss_curves,
    training_image_curves,
    validation_curves,
)
from allrounder.report.entry import Entry, Results, TrainingFacts
from allrounder.report.figures.base import FigureKind, unique_slugs
from allrounder.report.outcome import NATURAL

MAX_MARKS = 20
"""Exchanges that are drawn; more would hide the curves."""
EPOCH_AXIS = Axis("epoch")


@final
@dataclass(frozen=True)
class Quantity:
    """A number that every learner logs."""

    key: str
    """The last word of the names of its curves."""
    title: str
    axis: Axis
    about: str


QUANTITIES = (
    Quantity("loss", "Loss", Axis("loss"), "The mean loss of every learner on its training batches."),
    Quantity(
        "accuracy",
        "Accuracy on training batches",
        Axis("accuracy", percent=True),
        "The accuracy of every learner on the batches that it trains on, as its objective changes them.",
    ),
    Quantity("lr", "Learning rate", Axis("learning rate"), "The learning rate of every learner."),
    Quantity("share", "Shares", Axis("share"), "The share of every learner in the global weights."),
)
VALIDATION_ABOUT = (
    "Accuracy of the global weights, natural and under the attack of the validation, which gives an upper "
    "bound. If robust accuracy rises on training images and falls on held-out images, the network overfits."
)


def build_curves(results: Results) -> list[AnyChart]:
    """Plot held-out accuracies of all rows, then the curves of the first seed of every row."""
    trained = [entry for entry in results.entries if entry.trainings]
    slugs = unique_slugs(entry.name for entry in trained)
    charts = _comparisons(trained)
    for entry in trained:
        charts += _training_charts(entry, slugs[entry.name])
    return charts


def _training_charts(entry: Entry, name: str) -> list[AnyChart]:
    seed, training = next(iter(entry.trainings.items()))
    marks, exchanges = _exchange_marks(training)
    which = f"Seed {seed} of {', '.join(map(str, entry.trainings))}." if len(entry.trainings) > 1 else ""

    def chart(key: str, title: str, axis: Axis, about: str, series: Sequence[Series]) -> Chart:
        text = " ".join(filter(None, (about, which, exchanges)))
        heading = f"{title}: {entry.name}"
        drawn = tuple(series)
        return Chart(f"curves-{key}-{name}", heading, text, EPOCH_AXIS, axis, drawn, entry.name, marks)

    events = training.events
    held_out = _to_series(validation_curves(events), "global ", " (held-out)")
    seen = _to_series(training_image_curves(events), "global ", " (training)", "dashes")
    accuracy = Axis("accuracy", percent=True)
    by_learner = [*loss_curves(events, training.learners), *learner_curves(events, training.learners)]
    charts: list[AnyChart] = []
    if held_out:
        title = "Accuracy of the global weights"
        charts.append(chart("validation", title, accuracy, VALIDATION_ABOUT, [*held_out, *seen]))
    for quantity in QUANTITIES:
        suffix = f" {quantity.key}"
        curves = [curve for curve in by_learner if curve.name.endswith(suffix)]
        if series := _to_series(curves, cut=suffix):
            charts.append(chart(quantity.key, quantity.title, quantity.axis, quantity.about, series))
    return charts


def _exchange_marks(training: TrainingFacts) -> tuple[tuple[tuple[float, str], ...], str]:
    """The epochs of exchanges, and a sentence about them; many exchanges are only counted."""
    counts = Counter(training.exchanges)
    if not counts:
        return (), ""
    total = f"{counts.total()} exchange{'s' if counts.total() > 1 else ''}"
    if len(counts) > MAX_MARKS:
        return (), f"{total} in epochs {min(counts)} to {max(counts)} are not drawn."
    marks = tuple((float(epoch), "exchanges") for epoch in counts)
    return marks, f"Vertical lines: the epochs of {total} between the learners."


def _to_series(curves: Sequence[Curve], cut: str, add: str = "", mark: Mark = "line") -> list[Series]:
    """The curves that have values; `cut` is left out of their names, and `add` is added."""
    return [
        Series(
            curve.name.removeprefix(cut).removesuffix(cut) + add,
            tuple(map(float, curve.values)),
            tuple(100 * value if curve.percent else float(value) for value in curve.values.values()),
            mark,
        )
        for curve in curves
        if curve.values
    ]


def _comparisons(entries: Sequence[Entry]) -> list[AnyChart]:
    """Held-out accuracies of the global weights of all rows: natural, and under every threat."""
    series: dict[str, list[Series]] = {}
    for entry in entries:
        training = next(iter(entry.trainings.values()))
        for curve in validation_curves(training.events):
            last = max(training.epochs, *curve.values)
            x = tuple(100 * epoch / last for epoch in curve.values)
            y = tuple(100 * accuracy for accuracy in curve.values.values())
            name = curve.name.removeprefix("global ")
            series.setdefault(name, []).append(Series(entry.name, x, y, row=entry.name))
    about = (
        "Accuracy of the global weights on held-out images during the training of the first seed of each row."
    )
    attack = "The attack is that of each row's validation, which gives an upper bound."
    names = unique_slugs(series)
    return [
        Chart(
            f"curves-all-{names[threat]}",
            f"Held-out accuracy during training: {threat}",
            about if threat == NATURAL else f"{about} {attack}",
            Axis("part of the training", percent=True),
            Axis(f"held-out accuracy, {threat}", percent=True),
            tuple(rows),
        )
        for threat, rows in series.items()
    ]


CURVES = FigureKind(
    "Training",
    "Losses, accuracies, learning rates and shares during the trainings.",
    build_curves,
    "no run has a log of its training; name the folder of a run or of a study",
)
