"""How learners become one network: the mix rule, its shares and decay, and exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, cast, final

from pydantic import model_serializer

from allrounder.config.fields import OneOf, Share, did_you_mean, frozen_config, kind_of, raise_field_errors
from allrounder.config.schedules import Constant, Decay, Schedule, ShareCurve
from allrounder.config.time import Clock
from allrounder.nn.mixing import MIXES, Ema, MixRule
from allrounder.recipe.exchange import Exchange

DEFAULT_DECAY = Constant(value=0.999)
NO_DECAY = Constant(value=0.0)
"""The decay of plain training, and of mix rules without a moving average."""


@final
@frozen_config
class Shares:
    """The weight of every learner in the mixture: the lead follows a curve, the others divide the rest.

    gamma_lead = curve, gamma_W = rest_W (1 - curve): they lie in [0, 1] and sum to one by construction.
    """

    lead: str
    """The learner whose share the curve gives (gamma_1 of the papers)."""
    curve: ShareCurve
    """Its share over time, in [0, 1]; a bare number is a static share."""
    rest: Mapping[str, Share] = field(default_factory=dict[str, float])
    """How the other learners divide the remainder, summing to one; optional if there is only one other."""

    def __post_init__(self) -> None:
        messages: list[str] = []
        if self.rest and abs(sum(self.rest.values()) - 1) > 1e-9:
            messages.append(f"expected shares that sum to one, got {sum(self.rest.values()):g}")
        if self.lead in self.rest:
            messages.append(f'"{self.lead}" is the lead; its share is the curve')
        raise_field_errors(self, [(("rest",), message) for message in messages])

    def find_problem(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return the field that does not fit the learners `names` and why, or None."""
        others = [name for name in names if name != self.lead]
        if self.lead not in names:
            hint = did_you_mean(self.lead, names)
            return "lead", f'no learner is called "{self.lead}" (there are: {", ".join(names)}){hint}'
        if self.rest and set(self.rest) != set(others):
            return "rest", f"expected a share for each of {others}, got {sorted(self.rest)}"
        if not self.rest and len(others) > 1:
            return "rest", f"missing; give each of {others} its part of what the lead leaves"
        if not others and min(self.curve.bounds()) < 1:
            return "curve", "expected 1, or no shares at all: there is no other learner to take the rest"
        return None

    def at(self, t: int, clock: Clock, names: Sequence[str]) -> dict[str, float]:
        """Return every learner's share at step t, in learner order."""
        lead_share = self.curve(clock.schedule_step(t), clock)
        rest = self.rest or {name: 1.0 for name in names if name != self.lead}
        return {name: lead_share if name == self.lead else (1 - lead_share) * rest[name] for name in names}


@final
@frozen_config
class Mix:
    """How learners become one network."""

    rule: Annotated[MixRule, OneOf(lambda: MIXES)] = Ema()
    """How the learners' weights become global weights; by default a moving average of their mixture."""
    decay: Decay = cast(Schedule, None)  # set below, because the default depends on the rule
    """The decay of the global average (alpha' of the papers); 0.999 by default."""
    shares: Shares | None = None
    """Each learner's weight in the mixture; not needed for a single learner."""
    exchange: Exchange | None = None
    buffers: Literal["average", "recalibrate"] = "average"
    """Batch-norm statistics of the global weights: averaged like weights, or re-estimated on training
    images."""

    def __post_init__(self) -> None:
        if cast(Schedule | None, self.decay) is None:
            object.__setattr__(self, "decay", DEFAULT_DECAY if self.rule.uses_decay else NO_DECAY)
        kind = kind_of(self.rule, MIXES)
        problems: list[tuple[tuple[str], str]] = []
        if not self.rule.uses_decay and self.decay != NO_DECAY:
            problems.append((("decay",), f'the rule "{kind}" keeps no moving average; remove the decay'))
        if not self.rule.uses_shares and self.shares is not None:
            problems.append((("shares",), f'the rule "{kind}" weighs all learners alike; remove the shares'))
        if self.rule.needs_exchange and self.exchange is None:
            problems.append((("exchange",), f'missing; the rule "{kind}" takes a step at every exchange'))
        raise_field_errors(self, problems)

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Mix], dict[str, Any]]) -> dict[str, Any]:
        """Leave out the default rule, so that recipes older than the table of rules keep fingerprints."""
        table = handler(self)
        if self.rule == Ema():
            del table["rule"]
        return table

    @classmethod
    def solo(cls) -> Mix:
        """Return the mix of plain training: one learner, decay 0, no exchange."""
        return cls(decay=NO_DECAY)

    def shares_at(self, t: int, clock: Clock, names: Sequence[str]) -> dict[str, float]:
        """Return every learner's share at step t; without shares, all are equal."""
        return self.shares.at(t, clock, names) if self.shares else {name: 1 / len(names) for name in names}

    def count_exchanges(self, clock: Clock) -> int:
        """Return the number of exchanges of a run; none happens after its last step."""
        if self.exchange is None:
            return 0
        return self.exchange.count_due(clock) - self.exchange.is_due(clock.total_steps, clock)

    def exchange_due(self, t: int, clock: Clock) -> bool:
        """Whether the learners restart from the global weights after step t."""
        return self.exchange is not None and self.exchange.is_due(t, clock)
