"""The global weights: the states that the mix rule keeps for every learner, and their combination.

Learners communicate only when the global weights are needed. The states are received and combined in learner
order, so every placement of the learners rounds alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from torch import Tensor

from allrounder.config.time import Clock
from allrounder.distributed import Placement, World
from allrounder.nn.mixing import LearnerView
from allrounder.nn.state import copy_
from allrounder.recipe.mix import Mix
from allrounder.types import Weights


@final
class Mixer:
    """Keeps the states of the learners on this rank and combines those of all ranks on demand."""

    def __init__(
        self, mix: Mix, placement: Placement, start: Mapping[str, Tensor], world: World, clock: Clock
    ):
        """All learners start from the weights `start`.

        `start` is kept only as a shape template; its values may change.
        """
        self.mix = mix
        self.placement = placement
        self.world = world
        self.clock = clock
        self.template = start
        self.names = tuple(placement.ranks)
        self.states = {
            name: mix.rule.init(start, is_first=name == self.names[0])
            for name in placement.learners_on(world.rank)
        }
        self.views: dict[str, LearnerView] = {}

    def update(self, name: str, weights: Mapping[str, Tensor], t: int) -> None:
        """Update a learner's state with its weights after step t; needs no communication."""
        view = self.views.get(name)
        if view is None or view.weights is not weights:
            view = self.views[name] = LearnerView(name, weights)
        share = self.mix.shares_at(t, self.clock, self.names)[name]
        decay = self.mix.decay(t, self.clock)
        self.mix.rule.update_(self.states[name], view, share=share, decay=decay)

    def global_weights(self) -> Weights:
        """Return theta_g, the combination of all learners' states. All ranks call it together."""
        return self.mix.rule.combine(self._receive_states())

    def state_dict(self, name: str) -> Weights:
        """Return what the mixer keeps for a learner, for its checkpoint; the tensors are not copied."""
        return self.states[name]

    def load_state_dict(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Restore, in place, what `state_dict` returned for a learner."""
        copy_(self.states[name], state)

    def _receive_states(self) -> Iterator[Weights]:
        """Yield the state of every learner in order; those of other ranks are received into new tensors."""
        for name in self.names:
            if name in self.states:
                state = self.states[name]
            else:
                state = self.mix.rule.init(self.template, is_first=False)
            self.world.broadcast_(state, src=self.placement.leader(name))
            yield state
