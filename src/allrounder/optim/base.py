"""How a loss becomes motion of the weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import value
from allrounder.config.time import Time
from allrounder.errors import Diverged
from allrounder.objectives.base import Objective
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, Passes


class Update(ABC):
    """One optimiser step of one learner; frozen, with any memory kept by the learner."""

    members: ClassVar[int | None] = None
    """How many runs a training must start from, where the update needs their weights."""
    whole_batch: ClassVar[bool] = True
    """Whether it needs all images of a batch on one rank; false where all it takes from gradients comes after
    `reduce_`."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """Tensors carried from step to step, named apart from those of objectives; none by default.

        The network is the bare one, so that names are those of its weights in any precision.
        """
        return {}

    def begin_(  # noqa: B027
        self, memory: Mapping[str, Tensor], members: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Take the weights of the runs that a training starts from into the memory; nothing by default."""

    def restarted(self, memory: Mapping[str, Tensor]) -> bool:
        """Whether the last step went back to earlier weights, so that an average has to start anew there."""
        return False

    def reset_(self, memory: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Forget momentum that is kept in the memory, as an optimiser forgets its own; nothing by default."""

    def passes(self, objective: Objective) -> Passes:
        """What a step with an objective takes, at most; by default what the objective does."""
        return objective.passes()

    def epoch_passes(self, objective: Objective) -> Passes:
        """What the last step of an epoch takes beyond that; nothing by default."""
        return Passes()

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
    """Raise Diverged where there is nothing to descend.

    On an accelerator the question would wait for the device; the learner's watch sees the gradients there.
    """
    if loss.total.is_cuda:
        return
    total = float(loss.total.detach())
    if not math.isfinite(total):
        raise Diverged(f"the loss is {total}; try a smaller learning rate or a warm-up")


def too_late(start: Time, epochs: int) -> list[tuple[str, str]]:
    """The problem of a `start` that never comes in a run of so many epochs, if it is one."""
    if start.epochs(epochs) < epochs:
        return []
    return [("start", f"is {start}, which never comes in a run of {epochs} epochs; choose an earlier time")]


def length(tensor: Tensor) -> Tensor:
    """The Euclidean norm of a tensor, as a tensor on its device."""
    return tensor.square().sum().sqrt()
