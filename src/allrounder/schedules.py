"""Functions of time as values: learning rates, shares and decays.

A time in a recipe is a number of epochs, or a share of the run such as "62.5%", so that a recipe keeps its
meaning when the run is shortened. In code, time is a whole number of steps from 1; a `Clock` converts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, TypeVar, final

from pydantic import AfterValidator

from allrounder.values import Kind, Number, Share, Written, fraction, value

Pace = Literal["epoch", "step"]
S = TypeVar("S", bound="Schedule | None")


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


class Schedule(ABC):
    """A number that depends on the step: called as `schedule(t, clock)`."""

    @abstractmethod
    def __call__(self, t: int, clock: Clock) -> float: ...

    @abstractmethod
    def extremes(self) -> tuple[float, ...]:
        """Values between which the schedule always stays."""

    def times(self) -> tuple[Time, ...]:
        """Times that must follow each other; none by default."""
        return ()


@final
@value
class Constant(Schedule):
    """The same value always; a recipe may write the bare number."""

    value: Number

    def __call__(self, t: int, clock: Clock) -> float:
        return self.value

    def extremes(self) -> tuple[float, ...]:
        return (self.value,)


def _check_knots(at: tuple[Time, ...], to: tuple[float, ...]) -> None:
    if not at or len(at) != len(to):
        raise ValueError(f"expected one value for every time, got {len(at)} times and {len(to)} values")
    # How epochs and shares of the run compare is known to the recipe alone.
    same = [times for times in pairwise(at) if times[0].unit == times[1].unit]
    if disorder := disordered(same, epochs=1):
        raise ValueError(disorder)


def disordered(neighbours: Iterable[tuple[Time, Time]], epochs: int) -> str | None:
    """What is wrong with times that should ascend in a run of so many epochs, if anything is."""
    for early, late in neighbours:
        if early.epochs(epochs) > late.epochs(epochs):
            return f"expected times in ascending order, got {early} before {late}"
    return None


@final
@value
class Linear(Schedule):
    """Piecewise linear between knots; constant before the first and after the last."""

    at: tuple[Time, ...]
    """The times of the knots, ascending."""
    to: tuple[Number, ...]
    """The value at each knot."""

    def __post_init__(self) -> None:
        _check_knots(self.at, self.to)

    def __call__(self, t: int, clock: Clock) -> float:
        knots = [time.steps(clock) for time in self.at]
        if t <= knots[0]:
            return self.to[0]
        for left, right, low, high in zip(knots, knots[1:], self.to, self.to[1:], strict=False):
            if t < right:
                return low + (high - low) * (t - left) / (right - left)
        return self.to[-1]

    def extremes(self) -> tuple[float, ...]:
        return self.to

    def times(self) -> tuple[Time, ...]:
        return self.at


@final
@value
class Step(Schedule):
    """Piecewise constant: each value holds from its time on."""

    at: tuple[Time, ...]
    """The times from which the values hold, ascending; before the first, the first value holds."""
    to: tuple[Number, ...]
    """The values."""

    def __post_init__(self) -> None:
        _check_knots(self.at, self.to)

    def __call__(self, t: int, clock: Clock) -> float:
        reached = sum(time.steps(clock) <= t for time in self.at)
        return self.to[max(reached, 1) - 1]

    def extremes(self) -> tuple[float, ...]:
        return self.to

    def times(self) -> tuple[Time, ...]:
        return self.at


@final
@value
class Cyclic(Schedule):
    """One triangle: from `low` up to `peak`, and back to `low` at the end of the run."""

    peak: Number
    low: Number = 0.0
    top: Time = Time(Fraction(1, 2), "run")
    """When the peak is reached."""

    def __call__(self, t: int, clock: Clock) -> float:
        top = self.top.steps(clock)
        rising = t / top if t < top else (clock.total - t) / max(clock.total - top, 1)
        return self.low + (self.peak - self.low) * max(rising, 0.0)

    def extremes(self) -> tuple[float, ...]:
        return (self.low, self.peak)


@final
@value
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over the run, after an optional linear warm-up from 0."""

    start: Number
    end: Number = 0.0
    warmup: Time = Time(Fraction(0))

    def __call__(self, t: int, clock: Clock) -> float:
        warm = self.warmup.steps(clock)
        if t < warm:
            return self.start * t / warm
        gone = min((t - warm) / max(clock.total - warm, 1), 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * gone)) / 2

    def extremes(self) -> tuple[float, ...]:
        return (self.start, self.end, *((0.0,) if self.warmup.amount else ()))


@final
@value
class Ramp(Schedule):
    """The released warm-up of a decay: min(limit, t / (t + 9)), so 0.1 at first (Generalist, 2023)."""

    limit: Share = 0.999

    def __call__(self, t: int, clock: Clock) -> float:
        return min(self.limit, t / (t + 9))

    def extremes(self) -> tuple[float, ...]:
        return (0.0, self.limit)


@final
@value
class Horizon(Schedule):
    """A decay given by how long it remembers: 1 - 1/steps, so that it survives another dataset size.

    The papers' 0.999 at 391 steps an epoch remembers 2.56 epochs.
    """

    over: Time

    def __call__(self, t: int, clock: Clock) -> float:
        return 1 - 1 / max(self.over.steps(clock), 1)

    def extremes(self) -> tuple[float, ...]:
        return (0.0, 1.0)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "step": Step,
    "cyclic": Cyclic,
    "cosine": Cosine,
}
DECAYS: dict[str, type[Schedule]] = {"constant": Constant, "ramp": Ramp, "horizon": Horizon}


def _within(what: str, high: float = 1.0) -> AfterValidator:
    """A check that a schedule stays between 0 and a bound."""

    def check(schedule: S) -> S:
        found = sorted(schedule.extremes()) if schedule is not None else [0.0]
        if found[0] < 0 or found[-1] > high:
            got = " to ".join(dict.fromkeys(f"{end:g}" for end in (found[0], found[-1])))
            raise ValueError(f"expected {what}, got {got}")
        return schedule

    return AfterValidator(check)


Rate = Annotated[Schedule, Kind(lambda: SCHEDULES, number=Constant), _within("rates of at least 0", math.inf)]
"""A field that holds a learning rate."""
ShareCurve = Annotated[Schedule, Kind(lambda: SCHEDULES, number=Constant), _within("shares in [0, 1]")]
"""A field that holds a share."""
Decay = Annotated[Schedule, Kind(lambda: DECAYS, number=Constant), _within("a decay in [0, 1]")]
"""A field that holds the decay of a moving average: between 0 (no memory) and 1."""
MaybeDecay = Annotated[
    Schedule | None,
    Kind(lambda: DECAYS, number=Constant, optional=True),
    _within("a decay in [0, 1], or false"),
]
