"""Functions of time as values: learning rates, shares and decays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, TypeVar, final

from pydantic import AfterValidator

from allrounder.config.fields import Kind, Number, Share, value
from allrounder.config.time import Clock, Span, Time

S = TypeVar("S", bound="Schedule | None")


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
    """Piecewise constant: each value holds from its time on; in whole epochs, from the epoch of that
    number."""

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


def _middle(t: int, clock: Clock) -> float:
    """Curves that end in zero are read in the middle of an epoch, so that the last one is not wasted."""
    return float(t) if clock.pace == "step" else t - clock.steps / 2


@final
@value
class Cyclic(Schedule):
    """One triangle: from `low` up to `peak`, and back to `low` at the end of the run."""

    peak: Number
    low: Number = 0.0
    top: Time = Time(Fraction(1, 2), "run")
    """When the peak is reached."""

    def __call__(self, t: int, clock: Clock) -> float:
        now, top = _middle(t, clock), self.top.steps(clock)
        rising = now / top if now < top else (clock.total - now) / max(clock.total - top, 1)
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
        now, warm = _middle(t, clock), self.warmup.steps(clock)
        if now < warm:
            return self.start * now / warm
        gone = min((now - warm) / max(clock.total - warm, 1), 1.0)
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

    over: Span

    def __call__(self, t: int, clock: Clock) -> float:
        return 1 - 1 / max(self.over.steps(clock), 1)

    def extremes(self) -> tuple[float, ...]:
        return (0.0, math.nextafter(1, 0))


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "step": Step,
    "cyclic": Cyclic,
    "cosine": Cosine,
}
DECAYS: dict[str, type[Schedule]] = {"constant": Constant, "ramp": Ramp, "horizon": Horizon}


def _within(what: str, high: float = 1.0, *, below: bool = False) -> AfterValidator:
    """A check that a schedule stays between 0 and a bound."""

    def check(schedule: S) -> S:
        found = sorted(schedule.extremes()) if schedule is not None else [0.0]
        if found[0] < 0 or found[-1] > high or (below and found[-1] == high):
            got = " to ".join(dict.fromkeys(f"{end:g}" for end in (found[0], found[-1])))
            raise ValueError(f"expected {what}, got {got}")
        return schedule

    return AfterValidator(check)


Rate = Annotated[Schedule, Kind(lambda: SCHEDULES, number=Constant), _within("rates of at least 0", math.inf)]
"""A field that holds a learning rate."""
ShareCurve = Annotated[Schedule, Kind(lambda: SCHEDULES, number=Constant), _within("shares in [0, 1]")]
"""A field that holds a share."""
Decay = Annotated[Schedule, Kind(lambda: DECAYS, number=Constant), _within("a decay in [0, 1)", below=True)]
"""A field that holds the decay of a moving average: from 0 (no memory) to below 1 (no change)."""
MaybeDecay = Annotated[
    Schedule | None,
    Kind(lambda: DECAYS, number=Constant, optional=True),
    _within("a decay in [0, 1), or false", below=True),
]
