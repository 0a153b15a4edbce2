"""A mixture whose shares are chosen on held-out images at every exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import PositiveInt, frozen_config
from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.state import clone, copy_, strip_prefix, sum_weights
from allrounder.types import NamedTensors, Weights

THETA, SHARES = "theta.", "shares"
"""The prefix of a learner's weights in its state, and the name of its shares there, one for each group."""
NOT_CHOSEN = -1.0
"""Stands for the share of a learner before the first choice, when all shares are equal."""
ALL = "all"
"""The name of the only group, if there is one."""


@final
@frozen_config
class Chosen(MixRule):
    """The learners' mixture, without memory, with shares that are chosen on held-out images.

        theta_g = sum_W s_W theta_W,    s = argmax over a grid of natural plus robust accuracy of theta_g

    At every exchange, all shares that are multiples of 1 / grid are measured, and the shares in force; the
    first of the best replaces them. With groups = "layers", every top-level module of the network has its own
    shares, which are chosen one module after the other. A module with the same weights in all learners is
    left out. Accuracies are those that the best weights are selected by, on the same images. Between
    exchanges the shares in force stay; before the first exchange they are equal. Integer buffers are those of
    the first learner.
    """

    uses_shares: ClassVar[bool] = False
    uses_decay: ClassVar[bool] = False
    needs_exchange: ClassVar[bool] = True
    needs_held_out: ClassVar[bool] = True
    is_convex: ClassVar[bool] = False  # with groups, only the weights of every single module are a mixture

    grid: Annotated[PositiveInt, Field(ge=2, le=50)] = 5
    """The number of parts that shares are divided into. With n learners, (grid + n - 1)! / (grid! (n - 1)!)
    networks are measured for every group."""
    groups: Literal["none", "layers"] = "none"
    """Whether all weights have the same shares, or every top-level module has its own."""

    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return a copy of the initial weights, and shares that are not chosen."""
        state = {f"{THETA}{name}": tensor for name, tensor in clone(start).items()}
        device = next((tensor.device for tensor in state.values()), None)
        num_groups = len(self.group_names(start))
        state[SHARES] = torch.full((num_groups,), NOT_CHOSEN, dtype=torch.float64, device=device)
        return state

    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """Copy the learner's weights."""
        copy_(strip_prefix(THETA, state), learner.weights)

    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the mixture by the shares in the states, divided by their sum, added in learner order."""
        total = sum_weights(self._scale(state, state[SHARES]) for state in states)
        return strip_prefix(THETA, self._scale(total, total[SHARES].reciprocal()))

    def _scale(self, state: NamedTensors, factors: Tensor) -> Weights:
        """Multiply the weights of a state by the factors of their groups."""
        groups, numbers = self.group_names(strip_prefix(THETA, state)), cast(list[float], factors.tolist())
        return {
            key: tensor * numbers[groups[self.group_of(key.removeprefix(THETA))]]
            if tensor.is_floating_point() and key != SHARES
            else tensor
            for key, tensor in state.items()
        }

    def share_in_force(self, state: NamedTensors) -> float | None:
        """Return the share of a learner, averaged over groups; None before the first choice."""
        share = float(state[SHARES].mean())
        return None if share < 0 else share

    def group_of(self, name: str) -> str:
        """Return the group of a tensor of the network."""
        return ALL if self.groups == "none" else name.partition(".")[0]

    def group_names(self, names: Iterable[str]) -> dict[str, int]:
        """Return the groups of a network's tensors, each with its position in the shares of a state."""
        return {group: i for i, group in enumerate(dict.fromkeys(self.group_of(name) for name in names))}

    def num_networks(self, num_learners: int, names: Iterable[str]) -> int:
        """Return the largest number of networks that are measured at an exchange."""
        return 1 + len(self.group_names(names)) * len(simplex_grid(num_learners, self.grid))


def with_shares(states: Sequence[NamedTensors], group: int, shares: Sequence[float]) -> list[Weights]:
    """Return the states of all learners with other shares in one group; the weights are not copied."""
    changed: list[Weights] = []
    for state, share in zip(states, shares, strict=True):
        values = state[SHARES].clone()
        values[group] = share
        changed.append({**state, SHARES: values})
    return changed


def shares_of(states: Mapping[str, NamedTensors], group: int) -> dict[str, float]:
    """Return the shares of a group by learner, as parts of their sum."""
    values = {name: float(state[SHARES][group]) for name, state in states.items()}
    return {name: value / sum(values.values()) for name, value in values.items()}


def simplex_grid(count: int, parts: int) -> list[tuple[float, ...]]:
    """Return all `count` numbers of at least 0 that sum to one and are multiples of 1 / parts, in a fixed
    order."""
    cuts = combinations_with_replacement(range(parts + 1), count - 1)
    ends = ((0, *cut, parts) for cut in cuts)
    return [tuple((right - left) / parts for left, right in pairwise(end)) for end in ends]
