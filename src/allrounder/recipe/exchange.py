"""Exchanges: when the learners restart from the global weights. Needs no torch."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

from allrounder.config.fields import frozen_config
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
    """The learners' own weight averages across an exchange; kept as released."""

    def is_due(self, t: int, clock: Clock) -> bool:
        """Whether the learners restart after step t."""
        start, period = self.start.to_steps(clock), self.period(clock)
        if self.when == "epoch-end":
            return t >= start and t % period == 0
        end = clock.epoch(t) * clock.steps_per_epoch
        return end - end % period >= max(start, end - clock.steps_per_epoch + 1)

    def period(self, clock: Clock) -> int:
        """Return the number of steps between two exchanges."""
        return max(self.every.to_steps(clock), 1)
