"""How a loss becomes motion of the weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.errors import Diverged
from allrounder.objectives.base import Objective
from allrounder.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, Passes
from allrounder.values import value


class Update(ABC):
    """One optimiser step of one learner; frozen, with any memory kept by the learner."""

    whole_batch: ClassVar[bool] = True
    """Whether it needs all images of a batch on one rank; false where all it takes from gradients comes after
    `reduce_`."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """Tensors carried from step to step, named apart from those of objectives; none by default."""
        return {}

    def passes(self, objective: Objective) -> Passes:
        """What a step with an objective takes, at most; by default what the objective does."""
        return objective.passes()

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """Fields that make no sense with an objective, an optimiser and a length, with what is wrong."""
        return []

    @abstractmethod
    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """Craft, evaluate the loss, and move the weights; `reduce_` averages gradients over a group."""


@final
@value
class Descend(Update):
    """Plain descent: craft, loss, backward, optimiser step."""

    whole_batch: ClassVar[bool] = False

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """One step; a loss that is not finite raises before anything moves."""
        crafted = objective.craft(model, batch, ctx)
        model.train()
        loss = objective.loss(model, batch, crafted, ctx)
        check_finite(loss)
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        reduce_(model)
        optimizer.step()
        return loss


def check_finite(loss: Loss) -> None:
    """Raise Diverged where there is nothing to descend."""
    total = float(loss.total.detach())
    if not math.isfinite(total):
        raise Diverged(f"the loss is {total}; try a smaller learning rate or a warm-up")
