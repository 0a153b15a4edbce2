"""The losses and accuracies that learners report at every step, summed until an epoch is logged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from allrounder.types import Loss

Sums = dict[str, float]
IMAGES_PREFIX = "images."
"""Prefix of the number of images that a sum is over: a method may report a metric in some steps only."""
MAX_PENDING = 1000
"""The largest number of steps whose metrics stay on a device before they are read."""


@final
class EpochMetrics:
    """Per-learner sums over images, as plain numbers that JSON stores exactly, and a stopwatch."""

    def __init__(self, names: Sequence[str], *, lazy: bool = False):
        """Start at zero. With `lazy`, metrics are read from their device only when sums are asked for."""
        self.totals = {name: _zero_sums() for name in names}
        self.lazy = lazy
        self.pending: list[tuple[str, dict[str, Tensor], int]] = []
        self.lap_start = time.monotonic()

    def add(self, name: str, loss: Loss, images: int) -> None:
        """Add one step of a learner: the means over its batch, weighted by the number of images."""
        self.pending.append((name, {"loss": loss.total.detach(), **loss.parts}, images))
        if not self.lazy or len(self.pending) == MAX_PENDING:
            self._flush()

    @property
    def sums(self) -> dict[str, Sums]:
        """The sums of every learner since they were last popped."""
        self._flush()
        return self.totals

    def pop_sums(self, name: str) -> Sums:
        """Return a learner's sums and reset them."""
        sums = self.sums[name]
        self.totals[name] = _zero_sums()
        return sums

    def _flush(self) -> None:
        """Add pending metrics in their order, one step at a time, so that lazy sums round like eager ones."""
        for name, metrics, images in self.pending:
            sums = self.totals[name]
            for key, value in metrics.items():
                sums[key] = sums.get(key, 0.0) + float(value) * images
                sums[IMAGES_PREFIX + key] = sums.get(IMAGES_PREFIX + key, 0.0) + images
        self.pending.clear()

    def lap_seconds(self) -> float:
        """Return the seconds since the last call."""
        previous = self.lap_start
        self.lap_start = time.monotonic()
        return round(self.lap_start - previous, 3)

    def load_sums(self, sums: Mapping[str, Mapping[str, float]]) -> None:
        """Restore the sums of a checkpoint; learners that are not in `sums` start at zero."""
        self.pending.clear()
        self.totals = {name: dict(sums.get(name, _zero_sums())) for name in self.totals}


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return each metric per image of the steps that reported it; 0 if none did."""
    totals = {key: total for key, total in sums.items() if not key.startswith(IMAGES_PREFIX)}
    return {key: total / (sums.get(IMAGES_PREFIX + key, 0.0) or 1.0) for key, total in totals.items()}


def add_sums(per_rank: Sequence[Mapping[str, float]]) -> Sums:
    """Add the sums of several ranks that share a learner."""
    keys = dict.fromkeys(key for sums in per_rank for key in sums)
    return {key: sum(sums.get(key, 0.0) for sums in per_rank) for key in keys}


def _zero_sums() -> Sums:
    return {"loss": 0.0, "accuracy": 0.0}
