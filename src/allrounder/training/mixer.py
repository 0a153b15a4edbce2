"""The global weights: the states that the mix rule keeps for every learner, their combination, and the
batch-norm statistics of averaged weights.

Learners communicate only when the global weights are needed. The states are received and combined in learner
order, so every placement of the learners rounds alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import final

import torch
from torch import Tensor, nn

from allrounder.config.time import Clock
from allrounder.data.base import Split
from allrounder.distributed import Placement, World
from allrounder.nn.applied_gradients import AppliedGradients
from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.mixing import LearnerView
from allrounder.nn.state import clone, copy_, strip_prefix, weights_of
from allrounder.recipe.mix import Mix
from allrounder.rng import Rng
from allrounder.types import Images, Labels, NamedTensors, Weights, device_and_dtype

NUM_IMAGES = 2048
"""The largest number of images that batch-norm statistics are recalibrated on."""
STATE_PREFIX, MEMORY_PREFIX = "mix.", "exchange."
"""Prefixes of the tensors of a learner's state, and of the memory of the rule, in a checkpoint."""


@final
class Mixer:
    """Keeps the states of the learners on this rank and combines those of all ranks on demand."""

    def __init__(
        self,
        mix: Mix,
        placement: Placement,
        start: Mapping[str, Tensor],
        world: World,
        clock: Clock,
        parameters: Iterable[str] | None = None,
    ):
        """All learners start from `start`, which is kept as a shape template only; its values may change.
        `parameters` are the names of what is not a buffer, by default of all floating-point tensors."""
        self.mix = mix
        self.placement = placement
        self.world = world
        self.clock = clock
        self.template = start
        self.names = tuple(placement.ranks)
        local = placement.learners_on(world.rank)
        self.states = {name: mix.rule.init(start, is_first=name == self.names[0]) for name in local}
        if parameters is None:
            parameters = [name for name, tensor in start.items() if tensor.is_floating_point()]
        self.memory = mix.rule.memory({name: start[name] for name in parameters})
        self.views: dict[str, LearnerView] = {}
        self.gradients: dict[str, AppliedGradients] = {}

    def watch(self, name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Let the rule see the gradients that a learner's optimiser applies, if it uses them."""
        if self.mix.rule.uses_gradients:
            self.gradients[name] = AppliedGradients(model, optimizer)

    def update(self, name: str, weights: Mapping[str, Tensor], t: int) -> None:
        """Update a learner's state with its weights after step t; needs no communication."""
        view = self.views.get(name)
        if view is None or view.weights is not weights:
            view = self.views[name] = LearnerView(name, weights)
        share = self.mix.shares_at(t, self.clock, self.names)[name]
        decay = self.mix.decay(t, self.clock)
        view.gradients = self.gradients[name].pop() if name in self.gradients else {}
        self.mix.rule.update_(self.states[name], view, share=share, decay=decay)
        view.gradients = {}  # frees their memory

    def share(self, name: str, t: int) -> float:
        """Return the share of a learner of this rank at step t: that of the rule, or that of the recipe."""
        own = self.mix.rule.share_in_force(self.states[name])
        return self.mix.shares_at(t, self.clock, self.names)[name] if own is None else own

    def global_weights(self) -> Weights:
        """Return theta_g, the combination of all learners' states. All ranks call it together."""
        return self._step()[0]

    def exchange(self) -> Weights:
        """Return theta_g, and let the rule remember that the learners continue from it. All ranks call it
        together."""
        theta, self.memory = self._step()
        return theta

    def _step(self) -> tuple[Weights, NamedTensors]:
        rule = self.mix.rule
        return rule.step(rule.combine(self.receive_states()), self.memory)

    def state_dict(self, name: str) -> Weights:
        """Return what the mixer keeps for a learner, for its checkpoint; the tensors are not copied. The
        memory of the rule is saved with the first learner."""
        memory = self.memory if name == self.names[0] else {}
        return {
            **{f"{STATE_PREFIX}{key}": tensor for key, tensor in self.states[name].items()},
            **{f"{MEMORY_PREFIX}{key}": tensor for key, tensor in memory.items()},
        }

    def load_state_dict(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Restore, in place, what `state_dict` returned for a learner; `state` may hold more."""
        copy_(self.states[name], strip_prefix(STATE_PREFIX, state))
        if name == self.names[0]:
            copy_(self.memory, strip_prefix(MEMORY_PREFIX, state))

    def broadcast_memory(self) -> None:
        """Send the memory of the rule from the rank that restored it to all ranks, which call it together."""
        if self.memory:
            self.world.broadcast_(self.memory, src=self.placement.leader(self.names[0]))

    def receive_states(self) -> Iterator[Weights]:
        """Yield the state of every learner in order; those of other ranks are received into new tensors."""
        for name in self.names:
            local = self.states.get(name)
            state = self.mix.rule.init(self.template, is_first=False) if local is None else local
            self.world.broadcast_(state, src=self.placement.leader(name))
            yield state


def recalibrate(
    weights: Mapping[str, Tensor],
    network: nn.Module,
    split: Split,
    seed: int,
    batch_size: int,
    num_images: int = NUM_IMAGES,
    heartbeat: Callable[[], None] = lambda: None,
) -> Weights:
    """Return a copy of weights with batch-norm statistics of up to `num_images` images of a split. The
    weights of `network` are overwritten. `heartbeat` is called for every batch."""
    copy_(weights_of(network), weights)
    device, dtype = device_and_dtype(network)

    def batches() -> Generator[Tensor]:
        for x in sample_batches(split, num_images, Rng(seed).fold_in("recalibrate"), batch_size):
            heartbeat()
            yield x.to(device, dtype)

    recalibrate_(network, batches())
    return clone(weights_of(network))


def sample_batches(split: Split, num_images: int, rng: Rng, batch_size: int) -> Generator[Images]:
    """Yield batches of up to `num_images` random images of a split; the same images for the same `rng`."""
    for rows in sample_rows(split, num_images, rng, batch_size):
        yield split.fetch(rows)


def sample_rows(split: Split, num_images: int, rng: Rng, batch_size: int) -> Generator[Labels]:
    """Yield the positions of the images of `sample_batches`. A last batch of one image is left out:
    batch-norm cannot compute a variance from it."""
    for rows in torch.split(rng.permutation(len(split))[:num_images], batch_size):
        if len(rows) > 1 or len(split) == 1:
            yield rows
