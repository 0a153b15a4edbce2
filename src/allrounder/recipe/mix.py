"""The global weights: a moving average of the learners' mixture, kept as one part per learner.

    theta_g <- a theta_g + (1 - a) sum_W gamma_W theta_W          (Generalist++, Eq. 6)

is linear, so learner W can keep its own part G_W <- a G_W + (1 - a) gamma_W theta_W, and theta_g = sum_W G_W.
Nothing crosses between learners until somebody asks for the sum; the parts are added in learner order, so
every placement rounds alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, final

from torch import Tensor

from allrounder.config.fields import Share, nearest, refuse, value
from allrounder.config.schedules import Constant, Decay, ShareCurve
from allrounder.config.time import Clock, Span, Time
from allrounder.distributed import Placement, World
from allrounder.nn.state import Blend, Weights, add_, snapshot, zeros_like
from allrounder.types import Keep


@final
@value
class Shares:
    """The weight of every learner in the mixture: the lead follows a curve, the others divide what it leaves.

    gamma_lead = curve, gamma_W = rest_W (1 - curve): they lie in [0, 1] and sum to one by construction.
    """

    lead: str
    """The learner whose share the curve gives (gamma_1 of the papers)."""
    curve: ShareCurve
    """Its share over time, in [0, 1]; a bare number is a static share."""
    rest: Mapping[str, Share] = field(default_factory=dict[str, float])
    """How the others divide the remainder, summing to one; not needed where there is one other."""

    def __post_init__(self) -> None:
        problems: list[tuple[tuple[str], str]] = []
        if self.rest and abs(sum(self.rest.values()) - 1) > 1e-9:
            problems.append((("rest",), f"expected shares that sum to one, got {sum(self.rest.values()):g}"))
        if self.lead in self.rest:
            problems.append((("rest",), f'"{self.lead}" is the lead; its share is the curve'))
        refuse(self, problems)

    def problem(self, names: Sequence[str]) -> tuple[str, str] | None:
        """The field that does not fit these learners, and why, if one does not."""
        others = [name for name in names if name != self.lead]
        if self.lead not in names:
            hint = nearest(self.lead, names)
            return "lead", f'no learner is called "{self.lead}" (there are: {", ".join(names)}){hint}'
        if self.rest and set(self.rest) != set(others):
            return "rest", f"expected a share for each of {others}, got {sorted(self.rest)}"
        if not self.rest and len(others) > 1:
            return "rest", f"missing; say how {others} divide what the lead leaves"
        if not others and min(self.curve.extremes()) < 1:
            return "curve", "expected 1, or no shares at all: there is no other learner to take the rest"
        return None

    def at(self, t: int, clock: Clock, names: Sequence[str]) -> dict[str, float]:
        """Every learner's share at step t, in learner order."""
        lead = self.curve(clock.reading(t), clock)
        rest = self.rest or {name: 1.0 for name in names if name != self.lead}
        return {name: lead if name == self.lead else (1 - lead) * rest[name] for name in names}


@final
@value
class Exchange:
    """When the learners restart from the global weights: t >= start and t mod every = 0."""

    start: Time
    """t' of the papers."""
    every: Span
    """c of the papers."""
    when: Literal["epoch-end", "every-step"] = "epoch-end"
    """Once a period, which ends with an epoch where `every` is whole epochs; or, as in the released code,
    after every step of the epochs in which a period ends."""
    momentum: Keep = "keep"
    """The optimisers' momentum across an exchange; kept as released."""
    averages: Keep = "keep"
    """The learners' own weight averages across an exchange; kept as released."""

    def due(self, t: int, clock: Clock) -> bool:
        """Whether the learners restart after step t."""
        start, period = self.start.steps(clock), self.period(clock)
        if self.when == "epoch-end":
            return t >= start and t % period == 0
        end = clock.epoch(t) * clock.steps
        return end - end % period >= max(start, end - clock.steps + 1)

    def period(self, clock: Clock) -> int:
        """The steps between two exchanges."""
        return max(self.every.steps(clock), 1)


@final
@value
class Mix:
    """How learners become one network."""

    decay: Decay = Constant(value=0.999)
    """The decay of the global average (alpha' of the papers)."""
    shares: Shares | None = None
    """Who counts how much; not needed for a single learner."""
    exchange: Exchange | None = None
    buffers: Literal["average", "recalibrate"] = "average"
    """Batch-norm statistics of the global weights: averaged like weights, or re-estimated on training
    images."""

    @classmethod
    def solo(cls) -> Mix:
        """Plain training of one learner: no memory, no exchange."""
        return cls(decay=Constant(value=0.0))

    def shares_at(self, t: int, clock: Clock, names: Sequence[str]) -> dict[str, float]:
        """Every learner's share at step t."""
        return self.shares.at(t, clock, names) if self.shares else {name: 1.0 for name in names}

    def due(self, t: int, clock: Clock) -> bool:
        """Whether the learners restart from the global weights after step t."""
        return self.exchange is not None and self.exchange.due(t, clock)


@final
class Mixer:
    """Keeps one part per learner seated here, and adds them up on demand."""

    def __init__(
        self, mix: Mix, placement: Placement, start: Mapping[str, Tensor], world: World, clock: Clock
    ):
        """The first learner's part starts as all of the starting point, the others' as nothing of it; later
        it only says what weights are like, and may change."""
        self.mix, self.placement, self.world, self.clock = mix, placement, world, clock
        self.like = start
        self.names = tuple(placement.ranks)
        self.parts = {
            name: snapshot(start) if name == self.names[0] else zeros_like(start)
            for name in placement.local(world.rank)
        }
        self.blends: dict[str, Blend] = {}

    def observe(self, name: str, weights: Mapping[str, Tensor], t: int) -> None:
        """Take a learner's weights after step t into its part: local arithmetic."""
        share = self.mix.shares_at(t, self.clock, self.names)[name]
        blend = self.blends.get(name)
        if blend is None or blend.source is not weights:
            blend = self.blends[name] = Blend(self.parts[name], weights)
        blend(self.mix.decay(t, self.clock), share)

    def collect(self) -> Weights:
        """theta_g: the sum of the parts in learner order; every rank calls it together.

        Counters come from the first learner.
        """
        total: Weights = {}
        for name in self.names:
            part = self.parts[name] if name in self.parts else self._room()
            self.world.broadcast_(part, src=self.placement.leader(name))
            if total:
                add_(total, part)
            else:
                total = snapshot(part)
        return total

    def _room(self) -> Weights:
        """Where the part of a learner that is seated elsewhere is received."""
        return zeros_like(self.like)
