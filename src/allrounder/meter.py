"""What the learners report at every step, summed up until an epoch is logged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import final

from allrounder.types import Loss

Sums = dict[str, float]


@final
class Meter:
    """Sums over images for every learner, in plain numbers that survive a checkpoint's JSON, and a watch."""

    def __init__(self, names: Sequence[str]):
        """Everything starts at zero."""
        self.sums = {name: _nothing() for name in names}
        self.since = time.monotonic()

    def count(self, name: str, loss: Loss, images: int) -> None:
        """Add a learner's step, every image of it with the mean of its batch."""
        accuracy = loss.parts.get("accuracy")
        sums = self.sums[name]
        sums["loss"] += float(loss.total.detach()) * images
        sums["accuracy"] += (0.0 if accuracy is None else float(accuracy)) * images
        sums["images"] += images

    def taken(self, name: str) -> Sums:
        """A learner's sums since the last time they were asked for."""
        sums, self.sums[name] = self.sums[name], _nothing()
        return sums

    def means(self, name: str) -> dict[str, float]:
        """A learner's loss and accuracy per image since the last time they were asked for."""
        return means(self.taken(name))

    def seconds(self) -> float:
        """The time since the last time it was asked for."""
        since, self.since = self.since, time.monotonic()
        return round(self.since - since, 3)

    def restore(self, sums: Mapping[str, Mapping[str, float]]) -> None:
        """Go back to the sums of a checkpoint; those of learners that others speak for start at zero."""
        self.sums = {name: dict(sums.get(name, _nothing())) for name in self.sums}


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Loss and accuracy per image."""
    return {key: sums[key] / sums["images"] for key in ("loss", "accuracy")}


def total(several: Sequence[Mapping[str, float]]) -> Sums:
    """The sums of several ranks that share a learner."""
    return {key: sum(sums[key] for sums in several) for key in _nothing()}


def _nothing() -> Sums:
    return {"loss": 0.0, "accuracy": 0.0, "images": 0.0}
