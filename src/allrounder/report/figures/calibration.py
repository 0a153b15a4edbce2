"""Whether the confidences of the networks are the probabilities that they are correct."""

from __future__ import annotations

import statistics

import numpy as np

from allrounder.report.calibration import reliability
from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind
from allrounder.report.outcome import NATURAL
from allrounder.report.statistics import wilson_interval


def build_calibration(results: Results) -> list[AnyChart]:
    """Plot the reliability diagram of all rows with confidences."""
    series = [series for entry in results.evaluated if (series := _row_series(entry)) is not None]
    if not series:
        return []
    about = (
        "Natural images in bins by confidence, the probability of the predicted class; above the diagonal, a "
        "network is more often correct than it is confident. ECE: the mean distance from the diagonal, "
        "weighted by images; of several seeds, the mean."
    )
    return [
        Chart(
            "calibration",
            "Confidence and accuracy",
            about,
            Axis("mean confidence", percent=True),
            Axis("natural accuracy", percent=True),
            tuple(series),
            diagonal=True,
        )
    ]


def _row_series(entry: Entry) -> Series | None:
    """The bins of a row, with 95% intervals over images if it has one seed; None without confidences."""
    measured = [
        (outcome.predicted[NATURAL] == outcome.label, outcome.confidence)
        for outcome in entry.outcomes.values()
        if outcome.confidence is not None
    ]
    if not measured:
        return None
    correct, confidence = (np.concatenate(arrays) for arrays in zip(*measured, strict=True))
    bins = reliability(correct, confidence)
    error = statistics.fmean(reliability(*arrays).ece for arrays in measured)
    ends = [wilson_interval(*bin) for bin in zip(bins.accuracy.tolist(), bins.count.tolist(), strict=True)]
    intervals = tuple((100 * low, 100 * high) for low, high in ends)
    return Series(
        f"{entry.name} (ECE {100 * error:.1f}%)",
        tuple((100 * bins.confidence).tolist()),
        tuple((100 * bins.accuracy).tolist()),
        y_interval=intervals if len(measured) == 1 else (),
        row=entry.name,
    )


CALIBRATION = FigureKind(
    "Calibration",
    "Whether confidences are the probabilities of being correct.",
    build_calibration,
    "no evaluation has confidences; evaluate again with: allrounder eval RUN",
)
