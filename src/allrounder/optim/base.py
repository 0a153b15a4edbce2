"""Update rules: how the gradient of an objective changes the weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from pydantic import model_serializer
from torch import Tensor, nn

from allrounder.attacks.base import AttackResult
from allrounder.config.fields import frozen_config
from allrounder.config.time import Time
from allrounder.errors import Diverged
from allrounder.objectives.base import Objective, cross_entropy_loss
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, NamedTensors, Passes

EPSILON = 1e-20
"""Keeps divisions by the norm of a gradient finite."""


@final
@dataclass(frozen=True, eq=False)
class TrainingStep:
    """What one step of a learner works with, and the operations that update rules consist of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    batch: Batch
    ctx: Context
    allreduce_grads_: Callable[[nn.Module], None]
    """Averages the gradients of a module over the ranks that share the learner."""

    @property
    def starts_epoch(self) -> bool:
        """Whether this is the first step of its epoch."""
        return (self.ctx.t - 1) % self.ctx.clock.steps_per_epoch == 0

    def craft(self) -> AttackResult | None:
        """Craft the images to train on, then set the network to training mode."""
        crafted = self.objective.craft(self.model, self.batch, self.ctx)
        self.model.train()
        return crafted

    def loss(self, crafted: AttackResult | None) -> Loss:
        """The loss of the objective at the current weights."""
        return self.objective.loss(self.model, self.batch, crafted, self.ctx)

    def natural_loss(self) -> Loss:
        """The cross-entropy on natural images at the current weights."""
        return cross_entropy_loss(self.model(self.batch.x), self.batch)

    def pass_natural_(self) -> None:
        """Pass the natural images in training mode, only to update the running statistics of batch-norm."""
        with torch.no_grad():
            self.model(self.batch.x)

    def backward_(self, loss: Loss) -> None:
        """Replace the gradients by those of a loss on this rank's images; raise if it is not finite."""
        check_finite(loss)
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()

    def compute_grads_(self, loss: Loss) -> None:
        """Replace the gradients by those of a loss, averaged over ranks; raise if it is not finite."""
        self.backward_(loss)
        self.allreduce_grads_(self.model)


class Update(ABC):
    """One optimiser step of one learner; a frozen value whose state the learner keeps."""

    num_init_runs: ClassVar[int | None] = None
    """How many runs a training must start from, for updates that need their weights."""
    whole_batch: ClassVar[bool] = True
    """Whether it needs all images of a batch on one rank; false if it uses gradients only averaged."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """The initial state that it carries from step to step, under names that no objective uses. `model` is
        the network without autocast wrapper, so that names equal those of its weights."""
        return {}

    def set_init_(self, memory: NamedTensors, members: Sequence[NamedTensors]) -> None:  # noqa: B027
        """Store the weights of the runs that a training starts from in the memory; no-op by default."""

    def has_rolled_back(self, memory: NamedTensors) -> bool:
        """Whether the last step restored earlier weights, so that an average must restart from them."""
        return False

    def reset_momentum_(self, memory: NamedTensors) -> None:  # noqa: B027
        """Reset momentum in the memory when the optimiser's state is reset; no-op by default."""

    def passes(self, objective: Objective) -> Passes:
        """The most passes that a step with an objective takes; by default those of the objective."""
        return objective.passes()

    def epoch_passes(self, objective: Objective) -> Passes:
        """Additional passes in the last step of an epoch; none by default."""
        return Passes()

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """Fields that are invalid with an objective, an optimiser and a number of epochs, with messages."""
        return []

    @abstractmethod
    def apply(self, step: TrainingStep) -> Loss:
        """Craft, compute the loss, and change the weights."""


class NaturalPass(Update):
    """An update whose released code passes natural images in training mode in every step."""

    natural_pass: Any
    """A Flag; False by default."""

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Leave out the default, so that recipes older than the field keep their fingerprints."""
        table = handler(self)
        if not self.natural_pass:
            table.pop("natural_pass")
        return table


@final
@frozen_config
class Descend(Update):
    """Plain descent: craft, loss, backward, optimiser step."""

    whole_batch: ClassVar[bool] = False

    def apply(self, step: TrainingStep) -> Loss:
        """Take one step; a loss that is not finite raises before any weight changes."""
        loss = step.loss(step.craft())
        step.compute_grads_(loss)
        step.optimizer.step()
        return loss


def check_finite(loss: Loss) -> None:
    """Raise Diverged if the loss is not finite. No-op on CUDA, where the check would wait for the device;
    there `NonFiniteGuard` checks the gradients."""
    if loss.total.is_cuda:
        return
    total = float(loss.total.detach())
    if not math.isfinite(total):
        raise Diverged(f"the loss is {total}; try a smaller learning rate or a warm-up")


def never_starts(start: Time, epochs: int) -> list[tuple[str, str]]:
    """The problem of a field `start` that lies beyond a run of `epochs` epochs, in a list; empty if none."""
    if start.to_epochs(epochs) < epochs:
        return []
    return [("start", f"is {start}, which never comes in a run of {epochs} epochs; choose an earlier time")]


def l2_norm(tensor: Tensor) -> Tensor:
    """The Euclidean norm of a tensor, as a scalar tensor on its device."""
    return tensor.square().sum().sqrt()
