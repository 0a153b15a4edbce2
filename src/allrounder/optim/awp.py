"""Adversarial weight perturbation: descend from the worst weights nearby."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import nn

from allrounder.config.fields import Positive, value
from allrounder.config.time import Time
from allrounder.nn.modes import buffers_restored
from allrounder.objectives.base import Objective
from allrounder.optim.base import Descend, Update, check_finite, length, too_late
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, Passes

TINY = 1e-20


@final
@value
class WeightPerturbed(Update):
    """Adversarial weight perturbation (AWP): any objective's gradient, taken at weights that raise its loss.

    With g the gradient of the loss at w, for every tensor of more than one dimension by itself:
        v = gamma |w| g / |g|,    w <- w - lr * grad loss(w + v)
    Crafting sees w. Before `start` this is plain descent. gamma is 0.005 as released for TRADES; released
    adversarial training uses 0.01. Running statistics of batch-norm see the pass at w + v alone: as released,
    where g comes from a copy of the network whose statistics are thrown away. The loss that is logged is the
    one at w + v.
    Wu, Xia and Wang, 2020, Adversarial weight perturbation helps robust generalization.
    """

    whole_batch: ClassVar[bool] = False

    gamma: Positive = 0.005
    """The size of the perturbation, relative to the norm of a tensor."""
    start: Time = Time.read(0)
    """When perturbing begins; released TRADES waits for 10 of 200 epochs."""

    def passes(self, objective: Objective) -> Passes:
        """Those of the loss a second time, from `start` on."""
        return objective.passes() + objective.loss_passes()

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """A start that never comes."""
        return too_late(self.start, epochs)

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """One step; the gradient of the ascent is averaged too, so that all who share it perturb alike."""
        if ctx.t <= self.start.steps(ctx.clock):
            return Descend().apply(model, optimizer, objective, batch, ctx, reduce_)
        crafted = objective.craft(model, batch, ctx)
        model.train()
        optimizer.zero_grad(set_to_none=True)
        # The first pass leaves no trace: neither in statistics, nor in what the method remembers.
        aside = replace(ctx, memory={name: tensor.clone() for name, tensor in ctx.memory.items()})
        with buffers_restored(model):
            ascent = objective.loss(model, batch, crafted, aside)
            check_finite(ascent)
            ascent.total.backward()
        reduce_(model)
        # Differs: restored before the step, not after, so weight decay acts on w, not on w + v. ADR 0020
        with perturbed(model, self.gamma):
            optimizer.zero_grad(set_to_none=True)
            loss = objective.loss(model, batch, crafted, ctx)
            check_finite(loss)
            loss.total.backward()
        reduce_(model)
        optimizer.step()
        return loss


@contextmanager
def perturbed(model: nn.Module, gamma: float) -> Generator[None]:
    """Move weights up their gradients by gamma of their norms, and put them back to the bit, also after an
    error."""
    moved = [
        (parameter, parameter.detach().clone(), parameter.grad)
        for parameter in model.parameters()
        if parameter.grad is not None and parameter.dim() > 1
    ]
    try:
        with torch.no_grad():
            for parameter, before, g in moved:
                size = length(g)
                move = g * (gamma * length(before) / (size + TINY))
                # A gradient that overflows points nowhere; without it the descent decides about the step.
                parameter.add_(torch.where(size.isfinite(), move, 0))
        yield
    finally:
        with torch.no_grad():
            for parameter, before, _ in moved:
                parameter.copy_(before)
