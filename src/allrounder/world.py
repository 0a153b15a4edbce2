"""The processes of a run: who trains which learner, and what they tell each other.

A world of one is the serial case: it broadcasts to nobody and seats every learner on rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from allrounder.errors import WorldError


@final
@dataclass(frozen=True)
class Placement:
    """Which ranks train which learner, in learner order."""

    ranks: Mapping[str, tuple[int, ...]]

    @classmethod
    def alone(cls, names: Sequence[str]) -> Placement:
        """Every learner on rank 0."""
        return cls({name: (0,) for name in names})

    def local(self, rank: int) -> tuple[str, ...]:
        """The learners seated on a rank."""
        return tuple(name for name, ranks in self.ranks.items() if rank in ranks)

    def leader(self, name: str) -> int:
        """The rank that speaks for a learner."""
        return self.ranks[name][0]


@final
@dataclass(frozen=True)
class Seat:
    """One rank's place among the ranks of a learner: index 0 of 1 when it has the learner for itself."""

    index: int = 0
    count: int = 1

    @property
    def mean_(self) -> Callable[[nn.Module], None]:
        """Average a network's gradients over the group; nothing to do in a group of one."""
        return lambda model: None


@final
@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def from_env(cls) -> World:
        """A world of one on the best device of this machine."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size != 1:
            raise WorldError(
                f"launched with WORLD_SIZE={size}, expected 1: this version trains in one process; "
                "start it without torchrun"
            )
        if torch.cuda.is_available():
            return cls(0, 1, torch.device("cuda"))
        if torch.backends.mps.is_available():
            return cls(0, 1, torch.device("mps"))
        return cls(0, 1, torch.device("cpu"))

    def broadcast_(self, weights: Mapping[str, Tensor], src: int) -> None:
        """Give everybody the weights of one rank."""
        if src != self.rank:
            raise WorldError(f"rank {src} was asked to speak in a world of {self.size}")

    def seat(self, placement: Placement, name: str) -> Seat:
        """This rank's seat at a learner."""
        ranks = placement.ranks[name]
        return Seat(ranks.index(self.rank), len(ranks))
