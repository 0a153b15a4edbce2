"""What the learners report at every step, summed up until an epoch is logged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from allrounder.types import Loss

Sums = dict[str, float]
TOLD = "images."
"""Before the name of a number: the images of the steps that told it, as a method may not tell it in all."""
MOST_UNREAD = 1000
"""Steps whose numbers are left on a device at most."""


@final
class Meter:
    """Sums over images for every learner, in plain numbers that survive a checkpoint's JSON, and a watch."""

    def __init__(self, names: Sequence[str], *, waits: bool = False):
        """Everything starts at zero; a meter that waits reads a device only when it is asked for sums."""
        self.known = {name: _nothing() for name in names}
        self.waits = waits
        self.unread: list[tuple[str, dict[str, Tensor], int]] = []
        self.since = time.monotonic()

    def count(self, name: str, loss: Loss, images: int) -> None:
        """Add a learner's step, every image of it with the mean of its batch."""
        self.unread.append((name, {"loss": loss.total.detach(), **loss.parts}, images))
        if not self.waits or len(self.unread) == MOST_UNREAD:
            self._read()

    @property
    def sums(self) -> dict[str, Sums]:
        """All that was counted and not asked for yet."""
        self._read()
        return self.known

    def taken(self, name: str) -> Sums:
        """A learner's sums since the last time they were asked for."""
        sums, self.known[name] = self.sums[name], _nothing()
        return sums

    def means(self, name: str) -> dict[str, float]:
        """A learner's loss, accuracy and what else its method tells, per image since they were asked for."""
        return means(self.taken(name))

    def _read(self) -> None:
        """Add what was left unread, in its order and step by step, so that the sums round alike."""
        for name, told, images in self.unread:
            sums = self.known[name]
            for key, number in told.items():
                sums[key] = sums.get(key, 0.0) + float(number) * images
                sums[TOLD + key] = sums.get(TOLD + key, 0.0) + images
        self.unread.clear()

    def seconds(self) -> float:
        """The time since the last time it was asked for."""
        since, self.since = self.since, time.monotonic()
        return round(self.since - since, 3)

    def restore(self, sums: Mapping[str, Mapping[str, float]]) -> None:
        """Go back to the sums of a checkpoint; those of learners that others speak for start at zero."""
        self.unread.clear()
        self.known = {name: dict(sums.get(name, _nothing())) for name in self.known}


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Loss, accuracy and what else a method tells, per image of the steps that told it; 0 where none did."""
    numbers = {key: total for key, total in sums.items() if not key.startswith(TOLD)}
    return {key: total / (sums.get(TOLD + key, 0.0) or 1.0) for key, total in numbers.items()}


def total(several: Sequence[Mapping[str, float]]) -> Sums:
    """The sums of several ranks that share a learner."""
    keys = dict.fromkeys(key for sums in several for key in sums)
    return {key: sum(sums.get(key, 0.0) for sums in several) for key in keys}


def _nothing() -> Sums:
    return {"loss": 0.0, "accuracy": 0.0}
