"""Time in a run.

A time in a recipe is a number of epochs, or a share of the run such as "62.5%", so that a recipe keeps its
meaning when the run is shortened. In code, time is a whole number of steps from 1; a `Clock` converts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, final

from pydantic import AfterValidator

from allrounder.config.fields import Written, fraction

Pace = Literal["epoch", "step"]


@final
@dataclass(frozen=True)
class Time(Written):
    """A point or a stretch of time: epochs, or a share of the whole run."""

    amount: Fraction
    unit: Literal["epochs", "run"] = "epochs"

    @classmethod
    def read(cls, raw: object) -> Time:
        """Parse 75, 0.5, "62.5%" or "100/3%"."""
        if isinstance(raw, cls):
            return raw
        of_run = isinstance(raw, str) and raw.strip().endswith("%")
        try:
            amount = fraction(raw.strip()[:-1]) / 100 if of_run and isinstance(raw, str) else fraction(raw)
        except ValueError:
            raise ValueError(
                f'expected a time: epochs (75) or a share of the run ("62.5%"), got {raw!r}'
            ) from None
        if amount < 0 or (of_run and amount > 1):
            raise ValueError(f"expected a time of at least 0 and at most the whole run, got {raw!r}")
        return cls(amount, "run" if of_run else "epochs")

    def write(self) -> str | int | float:
        """Whole epochs as a number, anything else exactly."""
        if self.unit == "run":
            return f"{_decimal(self.amount * 100)}%"
        return int(self.amount) if self.amount.denominator == 1 else _decimal(self.amount)

    def __str__(self) -> str:
        return str(self.write())

    def epochs(self, of: int) -> Fraction:
        """The number of epochs, in a run of so many."""
        return self.amount * of if self.unit == "run" else self.amount

    def steps(self, clock: Clock) -> int:
        """The nearest whole number of steps."""
        return math.floor(self.epochs(clock.epochs) * clock.steps + Fraction(1, 2))


def _decimal(amount: Fraction) -> str:
    """A fraction as a short decimal where that is exact, else as a quotient."""
    short = f"{float(amount):.10g}"
    return short if Fraction(short) == amount else str(amount)


def _some(time: Time) -> Time:
    if time.amount == 0:
        raise ValueError(f"expected a stretch of time above 0, got {time}")
    return time


Span = Annotated[Time, AfterValidator(_some)]
"""A field that holds a stretch of time: a period, a memory."""


@final
@dataclass(frozen=True)
class Clock:
    """The length of a run in epochs, the steps of an epoch, and the pace at which schedules move."""

    epochs: int
    steps: int
    pace: Pace = "epoch"

    @property
    def total(self) -> int:
        """All steps of the run."""
        return self.epochs * self.steps

    def epoch(self, t: int) -> int:
        """The epoch, from 1, that step t, from 1, belongs to."""
        return (t - 1) // self.steps + 1

    def reading(self, t: int) -> int:
        """The step at which schedules are read in step t: the end of its epoch, as released, or t itself."""
        return t if self.pace == "step" else self.epoch(t) * self.steps
