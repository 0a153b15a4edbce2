"""The plain average of the learners, without memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, final

from allrounder.config.fields import frozen_config
from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.state import average_weights, clone, copy_
from allrounder.types import NamedTensors, Weights


@final
@frozen_config
class Uniform(MixRule):
    """The plain average of the learners' weights at the moment it is needed.

    The state of a learner is a copy of its weights. It is the average of a weight soup, taken at every
    validation and exchange instead of once. Integer buffers (batch-norm counters) are those of the last
    learner.
    """

    uses_shares: ClassVar[bool] = False
    uses_decay: ClassVar[bool] = False
    is_convex: ClassVar[bool] = True

    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return a copy of the initial weights."""
        return clone(start)

    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """Copy the learner's weights."""
        copy_(state, learner.weights)

    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the average, taken in learner order."""
        return average_weights(states)
