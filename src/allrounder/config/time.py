"""Time in a run.

A time in a recipe is a number of epochs, or a share of the run such as "62.5%", so that a recipe keeps its
meaning when the run is shortened. In code, time is a whole number of steps counted from 1; a `Clock`
converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, final

from pydantic import AfterValidator

from allrounder.config.fields import TextValue, parse_fraction
from allrounder.config.text import quote
from allrounder.errors import RecipeError

Pace = Literal["epoch", "step"]


@final
@dataclass(frozen=True)
class Time(TextValue):
    """A point in time or a duration: epochs, or a share of the whole run."""

    amount: Fraction
    unit: Literal["epochs", "run"] = "epochs"

    @classmethod
    def parse(cls, raw: object) -> Time:
        """Parse 75, 0.5, "62.5%" or "100/3%"."""
        if isinstance(raw, cls):
            return raw
        is_share = isinstance(raw, str) and raw.strip().endswith("%")
        try:
            amount = parse_fraction(str(raw).strip()[:-1]) / 100 if is_share else parse_fraction(raw)
        except ValueError:
            expected = 'expected a time: epochs (75) or a share of the run ("62.5%")'
            raise RecipeError(f"{expected}, got {quote(raw)}") from None
        if amount < 0 or (is_share and amount > 1):
            raise RecipeError(f"expected a time of at least 0 and at most the whole run, got {quote(raw)}")
        return cls(amount, "run" if is_share else "epochs")

    def to_toml(self) -> str | int | float:
        """Return whole epochs as a number, anything else as exact text."""
        if self.unit == "run":
            return f"{_format_decimal(self.amount * 100)}%"
        return int(self.amount) if self.amount.denominator == 1 else _format_decimal(self.amount)

    def __str__(self) -> str:
        return str(self.to_toml())

    def to_epochs(self, total: int) -> Fraction:
        """Return the number of epochs, in a run of `total` epochs."""
        return self.amount * total if self.unit == "run" else self.amount

    def to_steps(self, clock: Clock) -> int:
        """Return the nearest whole number of steps, halves rounded up."""
        unit = clock.steps_per_epoch * (clock.epochs if self.unit == "run" else 1)
        numerator, denominator = self.amount.numerator, self.amount.denominator
        return (2 * numerator * unit + denominator) // (2 * denominator)  # fractions would be much slower


def _format_decimal(amount: Fraction) -> str:
    """Format a fraction as a short decimal if that is exact, else as a quotient."""
    short = f"{float(amount):.10g}"
    return short if Fraction(short) == amount else str(amount)


def _check_positive(time: Time) -> Time:
    if time.amount == 0:
        raise ValueError(f"expected a duration above 0, got {time}")
    return time


Duration = Annotated[Time, AfterValidator(_check_positive)]
"""A field that holds a duration above 0: a period, a time constant."""


@final
@dataclass(frozen=True)
class Clock:
    """The length of a run in epochs, the steps of an epoch, and the pace at which schedules change."""

    epochs: int
    steps_per_epoch: int
    pace: Pace = "epoch"

    @property
    def total_steps(self) -> int:
        """The number of steps of the run."""
        return self.epochs * self.steps_per_epoch

    def epoch(self, t: int) -> int:
        """Return the epoch, counted from 1, of step t, counted from 1."""
        return (t - 1) // self.steps_per_epoch + 1

    def step_in_epoch(self, t: int) -> int:
        """Return the position of step t in its epoch, counted from 1."""
        return (t - 1) % self.steps_per_epoch + 1

    def ends_epoch(self, t: int) -> bool:
        """Whether step t is the last one of its epoch."""
        return t % self.steps_per_epoch == 0

    def schedule_step(self, t: int) -> int:
        """Return the step at which schedules are evaluated in step t.

        With pace "epoch", as in the released code, it is the end of the epoch; with "step", t itself.
        """
        return t if self.pace == "step" else self.epoch(t) * self.steps_per_epoch
