"""Schedules: learning rates, shares and decays as functions of the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, TypeVar, final

from pydantic import AfterValidator

from allrounder.config.fields import FiniteFloat, OneOf, Share, frozen_config
from allrounder.config.time import Clock, Duration, Time

S = TypeVar("S", bound="Schedule | None")
MAX_KNOTS = 1000
"""Times of a schedule; all of them are converted to steps at every step."""


class Schedule(ABC):
    """A number that depends on the step; called as `schedule(t, clock)`."""

    @abstractmethod
    def __call__(self, t: int, clock: Clock) -> float: ...

    @abstractmethod
    def bounds(self) -> tuple[float, ...]:
        """Return values whose smallest and largest bound the schedule."""

    def knot_times(self) -> tuple[Time, ...]:
        """Return the times that must be in ascending order; none by default."""
        return ()


@final
@frozen_config
class Constant(Schedule):
    """A constant; a recipe may write the bare number."""

    value: FiniteFloat

    def __call__(self, t: int, clock: Clock) -> float:
        return self.value

    def bounds(self) -> tuple[float, ...]:
        return (self.value,)


def order_problem(neighbours: Iterable[tuple[Time, Time]], epochs: int) -> str | None:
    """Return a message about the first pair of times out of order in a run of `epochs`, or None."""
    for early, late in neighbours:
        if early.to_epochs(epochs) > late.to_epochs(epochs):
            return f"expected times in ascending order, got {early} before {late}"
    return None


class PiecewiseSchedule(Schedule):
    """A schedule with a value for each of several times; subclasses declare the fields."""

    at: tuple[Time, ...]
    to: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.at or len(self.at) != len(self.to):
            got = f"{len(self.at)} times and {len(self.to)} values"
            raise ValueError(f"expected one value for every time, got {got}")
        if len(self.at) > MAX_KNOTS:
            raise ValueError(f"got {len(self.at):,} times, expected at most {MAX_KNOTS:,}; use fewer")
        # Only a recipe knows how epochs and shares of the run compare.
        comparable = [times for times in pairwise(self.at) if times[0].unit == times[1].unit]
        if problem := order_problem(comparable, epochs=1):
            raise ValueError(problem)

    def bounds(self) -> tuple[float, ...]:
        return self.to

    def knot_times(self) -> tuple[Time, ...]:
        return self.at


@final
@frozen_config
class Linear(PiecewiseSchedule):
    """Piecewise linear between knots; constant before the first knot and after the last one."""

    at: tuple[Time, ...]
    """The times of the knots, ascending."""
    to: tuple[FiniteFloat, ...]
    """The value at each knot."""

    def __call__(self, t: int, clock: Clock) -> float:
        knots = [time.to_steps(clock) for time in self.at]
        if t <= knots[0]:
            return self.to[0]
        for left, right, low, high in zip(knots, knots[1:], self.to, self.to[1:], strict=False):
            if t < right:
                return low + (high - low) * (t - left) / (right - left)
        return self.to[-1]


@final
@frozen_config
class Step(PiecewiseSchedule):
    """Piecewise constant: each value holds from its time on; with whole epochs, from the epoch of that
    number."""

    at: tuple[Time, ...]
    """The times from which the values hold, ascending; before the first time, the first value holds."""
    to: tuple[FiniteFloat, ...]
    """The values."""

    def __call__(self, t: int, clock: Clock) -> float:
        reached = sum(time.to_steps(clock) <= t for time in self.at)
        return self.to[max(reached, 1) - 1]


def _midpoint(t: int, clock: Clock) -> float:
    """Return the step at which schedules that end in zero are evaluated.

    With pace "epoch" it is the middle of the epoch, so that the last epoch has a rate above zero.
    """
    return float(t) if clock.pace == "step" else t - clock.steps_per_epoch / 2


@final
@frozen_config
class Cyclic(Schedule):
    """One triangle: from `low` up to `peak`, and back to `low` at the end of the run."""

    peak: FiniteFloat
    low: FiniteFloat = 0.0
    top: Time = Time(Fraction(1, 2), "run")
    """The time of the peak."""

    def __call__(self, t: int, clock: Clock) -> float:
        now = _midpoint(t, clock)
        top = self.top.to_steps(clock)
        height = now / top if now < top else (clock.total_steps - now) / max(clock.total_steps - top, 1)
        return self.low + (self.peak - self.low) * max(height, 0.0)

    def bounds(self) -> tuple[float, ...]:
        return (self.low, self.peak)


@final
@frozen_config
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over the run, after an optional linear warm-up from 0."""

    start: FiniteFloat
    end: FiniteFloat = 0.0
    warmup: Time = Time(Fraction(0))

    def __call__(self, t: int, clock: Clock) -> float:
        now = _midpoint(t, clock)
        warmup = self.warmup.to_steps(clock)
        if now < warmup:
            return self.start * now / warmup
        progress = min((now - warmup) / max(clock.total_steps - warmup, 1), 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * progress)) / 2

    def bounds(self) -> tuple[float, ...]:
        return (self.start, self.end, *((0.0,) if self.warmup.amount else ()))


@final
@frozen_config
class EmaWarmup(Schedule):
    """The released warm-up of a decay: min(limit, t / (t + 9)), which starts at 0.1 (Generalist, 2023)."""

    limit: Share = 0.999

    def __call__(self, t: int, clock: Clock) -> float:
        return min(self.limit, t / (t + 9))

    def bounds(self) -> tuple[float, ...]:
        return (0.0, self.limit)


@final
@frozen_config
class TimeConstant(Schedule):
    """A decay given by its time constant: 1 - 1/steps, so that it keeps its meaning on another dataset size.

    The papers' 0.999 at 391 steps per epoch is a time constant of 2.56 epochs.
    """

    over: Duration

    def __call__(self, t: int, clock: Clock) -> float:
        return 1 - 1 / max(self.over.to_steps(clock), 1)

    def bounds(self) -> tuple[float, ...]:
        return (0.0, math.nextafter(1, 0))


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "step": Step,
    "cyclic": Cyclic,
    "cosine": Cosine,
}
DECAYS: dict[str, type[Schedule]] = {"constant": Constant, "warmup": EmaWarmup, "time-constant": TimeConstant}


def _check_range(
    expected: str, high: float = 1.0, *, low: float = 0.0, exclusive: bool = False
) -> AfterValidator:
    """Return a validator that requires a schedule to stay between `low` and `high`."""

    def check(schedule: S) -> S:
        bounds = sorted(schedule.bounds()) if schedule is not None else [low]
        if bounds[0] < low or bounds[-1] > high or (exclusive and bounds[-1] == high):
            got = " to ".join(dict.fromkeys(f"{bound:g}" for bound in (bounds[0], bounds[-1])))
            raise ValueError(f"expected {expected}, got {got}")
        return schedule

    return AfterValidator(check)


AnySchedule = Annotated[Schedule, OneOf(lambda: SCHEDULES, number_type=Constant)]
LearningRate = Annotated[AnySchedule, _check_range("rates of at least 0", math.inf)]
"""A field that holds a learning rate."""
ShareCurve = Annotated[AnySchedule, _check_range("shares in [0, 1]")]
"""A field that holds a share."""
Decay = Annotated[
    Schedule, OneOf(lambda: DECAYS, number_type=Constant), _check_range("a decay in [0, 1)", exclusive=True)
]
"""A field that holds the decay of a moving average: from 0 (no memory) to below 1."""
OptionalDecay = Annotated[
    Schedule | None,
    OneOf(lambda: DECAYS, number_type=Constant, optional=True),
    _check_range("a decay in [0, 1), or false", exclusive=True),
]
"""A field that holds the decay of a moving average, or None, written as false."""
OptionalImageSize = Annotated[
    Schedule | None,
    OneOf(lambda: SCHEDULES, number_type=Constant, optional=True),
    _check_range("1 pixel or more, or false", math.inf, low=1.0),
]
"""A field that holds the side of square images in pixels, or None, written as false."""
