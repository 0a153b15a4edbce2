"""Generalist's rule: a moving average of the learners' mixture, kept as one partial sum per learner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, final

from allrounder.config.fields import frozen_config
from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.state import clone, sum_weights, zeros_like
from allrounder.types import NamedTensors, Weights


@final
@frozen_config
class Ema(MixRule):
    """An exponential moving average of the learners' mixture, weighted by shares.

        theta_g <- a theta_g + (1 - a) sum_W gamma_W theta_W          (Generalist++, Eq. 6)

    is linear, so learner W keeps its own partial sum G_W <- a G_W + (1 - a) gamma_W theta_W, and
    theta_g = sum_W G_W. The partial sum of the first learner starts at the initial weights, the others at
    zero. Integer buffers (batch-norm counters) are those of the first learner.
    """

    uses_shares: ClassVar[bool] = True
    uses_decay: ClassVar[bool] = True
    is_convex: ClassVar[bool] = True

    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return the initial weights for the first learner, zeros for the others."""
        return clone(start) if is_first else zeros_like(start)

    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """G_W <- decay G_W + (1 - decay) share theta_W."""
        learner.ema_update_(state, decay, share)

    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the sum of the partial sums, added in learner order."""
        return sum_weights(states)
