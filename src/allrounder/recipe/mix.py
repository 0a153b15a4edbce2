"""How learners become one network: the mix rule, its shares and decay, and exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast, final

from pydantic import model_serializer

from allrounder.config.fields import OneOf, frozen_config, kind_of, raise_field_errors
from allrounder.config.schedules import Constant, Decay, Schedule
from allrounder.config.time import Clock
from allrounder.nn.mixing import MIXES, Ema, MixRule
from allrounder.recipe.exchange import Exchange
from allrounder.recipe.shares import Shares

DEFAULT_DECAY = Constant(value=0.999)
NO_DECAY = Constant(value=0.0)
"""The decay of plain training, and of mix rules without a moving average."""


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
    buffers: Literal["average", "recalibrate", "recalibrate-adversarial", "recalibrate-both"] = "average"
    """Batch-norm statistics of the global weights: averaged like weights, or re-estimated on training
    images: on natural ones, on adversarial ones, or on batches of which one half is natural and the other
    adversarial. The validation attack crafts them, under the threats that the best weights are selected
    by."""

    def __post_init__(self) -> None:
        if cast(Schedule | None, self.decay) is None:
            object.__setattr__(self, "decay", DEFAULT_DECAY if self.rule.uses_decay else NO_DECAY)
        kind = kind_of(self.rule, MIXES)
        problems: list[tuple[tuple[str], str]] = []
        if not self.rule.uses_decay and self.decay != NO_DECAY:
            problems.append((("decay",), f'the rule "{kind}" keeps no moving average; remove the decay'))
        if not self.rule.uses_shares and self.shares is not None:
            problems.append((("shares",), f'the rule "{kind}" does not read shares; remove them'))
        if self.rule.needs_exchange and self.exchange is None:
            problems.append((("exchange",), f'missing; the rule "{kind}" acts at exchanges only'))
        raise_field_errors(self, problems)

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Mix], dict[str, Any]]) -> dict[str, Any]:
        """Leave out the default rule, so that recipes older than the table of rules keep fingerprints."""
        table = handler(self)
        if self.rule == Ema():
            del table["rule"]
        return table

    @property
    def crafts_for_statistics(self) -> bool:
        """Whether batch-norm statistics are measured on adversarial images."""
        return self.buffers in ("recalibrate-adversarial", "recalibrate-both")

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
