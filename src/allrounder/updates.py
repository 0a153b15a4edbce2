"""How a loss becomes motion of the weights; methods that edit gradients or weights are updates of their
own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import nn

from allrounder.errors import Diverged
from allrounder.objectives.base import Objective
from allrounder.types import Batch, Context, Loss
from allrounder.values import value


class Update(ABC):
    """One optimiser step of one learner."""

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
        total = float(loss.total.detach())
        if not math.isfinite(total):
            raise Diverged(f"the loss is {total}; try a smaller learning rate or a warm-up")
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        reduce_(model)
        optimizer.step()
        return loss


UPDATES: dict[str, type[Update]] = {"descend": Descend}
