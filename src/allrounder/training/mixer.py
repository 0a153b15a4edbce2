"""The global weights: an exponential moving average of the learners' mixture, kept as one partial sum per
learner.

    theta_g <- a theta_g + (1 - a) sum_W gamma_W theta_W          (Generalist++, Eq. 6)

is linear, so learner W can keep its own partial sum G_W <- a G_W + (1 - a) gamma_W theta_W, and
theta_g = sum_W G_W. Learners communicate only when the sum is needed. The partial sums are added in learner
order, so every placement of the learners rounds alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch import Tensor

from allrounder.config.time import Clock
from allrounder.distributed import Placement, World
from allrounder.nn.state import EmaUpdate, add_, clone, copy_, zeros_like
from allrounder.recipe.mix import Mix
from allrounder.types import Weights


@final
class Mixer:
    """Keeps the partial sums of the learners on this rank and adds up those of all ranks on demand."""

    def __init__(
        self, mix: Mix, placement: Placement, start: Mapping[str, Tensor], world: World, clock: Clock
    ):
        """The first learner's partial sum starts at the initial weights, the others at zero.

        `start` is kept only as a shape template; its values may change.
        """
        self.mix = mix
        self.placement = placement
        self.world = world
        self.clock = clock
        self.template = start
        self.names = tuple(placement.ranks)
        self.partial_sums = {
            name: clone(start) if name == self.names[0] else zeros_like(start)
            for name in placement.learners_on(world.rank)
        }
        self.ema_updates: dict[str, EmaUpdate] = {}

    def update(self, name: str, weights: Mapping[str, Tensor], t: int) -> None:
        """Update a learner's partial sum with its weights after step t; needs no communication."""
        share = self.mix.shares_at(t, self.clock, self.names)[name]
        ema_update = self.ema_updates.get(name)
        if ema_update is None or ema_update.source is not weights:
            ema_update = self.ema_updates[name] = EmaUpdate(self.partial_sums[name], weights)
        ema_update(self.mix.decay(t, self.clock), share)

    def global_weights(self) -> Weights:
        """Return theta_g, the sum of the partial sums in learner order. All ranks call it together.

        Integer buffers (batch-norm counters) come from the first learner.
        """
        total: Weights = {}
        for name in self.names:
            partial_sum = self.partial_sums[name] if name in self.partial_sums else self._buffer()
            self.world.broadcast_(partial_sum, src=self.placement.leader(name))
            if total:
                add_(total, partial_sum)
            else:
                total = clone(partial_sum)
        return total

    def state_dict(self, name: str) -> Weights:
        """Return what the mixer keeps for a learner, for its checkpoint; the tensors are not copied."""
        return self.partial_sums[name]

    def load_state_dict(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Restore, in place, what `state_dict` returned for a learner."""
        copy_(self.partial_sums[name], state)

    def _buffer(self) -> Weights:
        """Return zeros that receive the partial sum of a learner on another rank."""
        return zeros_like(self.template)
