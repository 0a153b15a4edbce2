"""Exchanges: when the learners restart from the global weights. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias, final

from pydantic import Field, model_serializer

from allrounder.config.fields import Share, frozen_config
from allrounder.config.time import Clock, Duration, Time

KeepOrReset: TypeAlias = Literal["keep", "reset"]


@final
@frozen_config
class Exchange:
    """When the learners synchronise, that is restart from the global weights: t >= start and t mod every = 0.

    The papers call it redistribution.
    """

    start: Time
    """t' of the papers."""
    every: Duration
    """c of the papers."""
    when: Literal["epoch-end", "every-step"] = "epoch-end"
    """Once per period, at the end of an epoch if `every` is a whole number of epochs; or, as in the released
    code, after every step of the epochs in which a period ends."""
    momentum: KeepOrReset = "keep"
    """The optimisers' momentum across an exchange; kept as released."""
    averages: KeepOrReset = "keep"
    """The learners' own weight averages across an exchange; kept as released. A reset one starts from the
    learner's weights after the exchange."""
    strength: Annotated[Share, Field(gt=0)] = 1.0
    """How far a learner moves to the global weights: to (1 - strength) theta_W + strength theta_g. 1 is the
    restart of the papers."""

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Exchange], dict[str, Any]]) -> dict[str, Any]:
        """Leave out the default strength, so that recipes older than it keep their fingerprints."""
        table = handler(self)
        if self.strength == 1:
            del table["strength"]
        return table

    def is_due(self, t: int, clock: Clock) -> bool:
        """Whether the learners restart after step t."""
        start, period = self.start.to_steps(clock), self.period(clock)
        if self.when == "epoch-end":
            return t >= start and t % period == 0
        end = clock.epoch(t) * clock.steps_per_epoch
        return end - end % period >= max(start, end - clock.steps_per_epoch + 1)

    def next_due(self, t: int, clock: Clock) -> int | None:
        """Return the first step after t after which the learners restart; None if no such step is left."""
        period = self.period(clock)
        if self.when == "epoch-end":
            first = -(-max(self.start.to_steps(clock), t + 1) // period) * period
            return first if first < clock.total_steps else None
        ends = range(clock.epoch(t + 1) * clock.steps_per_epoch, clock.total_steps + 1, clock.steps_per_epoch)
        end = next((end for end in ends if self.is_due(end, clock)), None)
        first = None if end is None else max(t + 1, end - clock.steps_per_epoch + 1)
        return first if first is not None and first < clock.total_steps else None

    def due_steps(self, clock: Clock) -> Iterator[int]:
        """Yield the steps for which `is_due` holds, in order, without visiting the others."""
        if self.when == "epoch-end":
            yield from self._period_ends(clock)
            return
        length = clock.steps_per_epoch
        last_epoch = 0
        for end in self._period_ends(clock):
            if (epoch := clock.epoch(end)) > last_epoch:
                yield from range((epoch - 1) * length + 1, epoch * length + 1)
                last_epoch = epoch

    def count_due(self, clock: Clock) -> int:
        """Return the number of steps for which `is_due` holds, in a time that does not depend on it."""
        ends = self._period_ends(clock)
        if self.when == "epoch-end" or not ends:
            return len(ends)
        length = clock.steps_per_epoch
        # From the first one on, short periods end in every epoch. No two long ones end in the same epoch.
        is_short = ends.step < length
        return (clock.epochs - clock.epoch(ends[0]) + 1 if is_short else len(ends)) * length

    def count_by_epoch(self, clock: Clock, until: int | None = None) -> Counter[int]:
        """Return the number of exchanges of every epoch, up to step `until`; none follows the last step."""
        last = min(until or clock.total_steps, clock.total_steps - 1)
        return Counter(clock.epoch(t) for t in takewhile(lambda t: t <= last, self.due_steps(clock)))

    def _period_ends(self, clock: Clock) -> range:
        """Return the steps from `start` on at which a period ends."""
        period = self.period(clock)
        first = max(-(-self.start.to_steps(clock) // period), 1) * period
        return range(first, clock.total_steps + 1, period)

    def period(self, clock: Clock) -> int:
        """Return the number of steps between two exchanges."""
        return max(self.every.to_steps(clock), 1)
