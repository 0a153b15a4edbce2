"""How long a training has taken and how long it will still take, from the seconds in its log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

from allrounder.config.decode import is_table
from allrounder.config.time import Clock, Time
from allrounder.training.record import RunRecord

RECENT = 5
"""How many of the last epochs and validations an estimate uses: earlier ones may be of another machine."""


@final
@dataclass(frozen=True)
class Timing:
    """What the log of a run says about time."""

    epoch_seconds: float | None
    """Of a typical recent epoch; None before the first one. The median, because the first epoch after an
    interruption may be a part of one only."""
    validation_seconds: float
    logged_seconds: float
    """Of all logged epochs and validations."""
    steps_per_epoch: int | None
    epochs_left: int
    validations_left: int

    @classmethod
    def measure(cls, record: RunRecord) -> Timing:
        """Read the timing of a run from its log and its recipe."""
        epochs: dict[int, float] = {}
        validations: dict[int, float] = {}
        steps_per_epoch = None
        for event in record.events:
            seconds = event.get("seconds", 0.0)
            if event["event"] == "epoch":  # every learner logs the seconds of the whole epoch on its rank
                epochs[event["t"]] = max(seconds, epochs.get(event["t"], 0.0))
                steps_per_epoch = event["t"] // event["epoch"]
            elif event["event"] == "validation":
                validations[event["t"]] = seconds
        return cls(
            _typical(list(epochs.values())),
            _typical(list(validations.values())) or 0.0,
            math.fsum([*epochs.values(), *validations.values()]),
            steps_per_epoch,
            record.epochs - record.epoch,
            _count_validations_left(record, steps_per_epoch, max(validations, default=0)),
        )

    def remaining(self, since: float = 0.0) -> float | None:
        """Estimate the seconds until the end, `since` seconds after the last event of the log; None before
        the first epoch. An epoch that takes longer than expected does not shorten the ones after it."""
        if self.epoch_seconds is None:
            return None
        later = self.validations_left * self.validation_seconds
        if not self.epochs_left:
            return max(later - since, 0.0)
        present = max(self.epoch_seconds - since, 0.0)
        return present + (self.epochs_left - 1) * self.epoch_seconds + later


def _typical(seconds: Sequence[float]) -> float | None:
    return median(seconds[-RECENT:]) if seconds else None


def _count_validations_left(record: RunRecord, steps_per_epoch: int | None, last: int) -> int:
    """Count the validations after step `last`; there is one after the last step of the run."""
    table = record.recipe.get("validation")
    settings = table if is_table(table) else {}
    selects = settings.get("on") == "test" or settings.get("images") != 0
    if steps_per_epoch is None or not selects:
        return 0
    clock = Clock(record.epochs, steps_per_epoch)
    every = max(Time.parse(settings.get("every", 1)).to_steps(clock), 1)
    total = clock.total_steps
    return total // every - last // every + (last < total and total % every > 0)
