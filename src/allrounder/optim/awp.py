"""Adversarial weight perturbation: the gradient is taken at nearby weights of higher loss."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import nn

from allrounder.config.fields import Flag, PositiveFloat, frozen_config
from allrounder.config.time import Time
from allrounder.nn.modes import preserve_buffers
from allrounder.objectives.base import Objective
from allrounder.optim.base import EPSILON, Descend, NaturalPass, TrainingStep, l2_norm, never_starts
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Loss, Passes


@final
@frozen_config
class Awp(NaturalPass):
    """Adversarial weight perturbation (AWP): any objective's gradient, taken at weights that raise its loss.

    With g the gradient of the loss at w, separately for every tensor of more than one dimension:
        v = gamma |w| g / |g|,    w <- w - lr * grad loss(w + v)
    Images are crafted at w. Before `start` this is plain descent. gamma is 0.005 as released for TRADES;
    released adversarial training uses 0.01. The pass at w updates no running statistics of batch-norm: in the
    released code g comes from a copy of the network whose statistics are discarded. The logged loss is the
    one at w + v. Released adversarial training also passes natural images after every step, for its log, and
    they update running statistics: set `natural_pass` for that.
    Wu, Xia and Wang, 2020, Adversarial weight perturbation helps robust generalization.
    """

    whole_batch: ClassVar[bool] = False

    gamma: PositiveFloat = 0.005
    """The size of the perturbation, relative to the norm of a tensor."""
    start: Time = Time.parse(0)
    """When perturbing starts; released TRADES starts after 10 of 200 epochs."""
    natural_pass: Flag = False
    """Whether natural images pass after every step, which updates running statistics."""

    def passes(self, objective: Objective) -> Passes:
        """The passes of the loss a second time, from `start` on, and a forward if natural images pass."""
        return objective.passes() + objective.loss_passes() + Passes(forwards=int(self.natural_pass))

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """A start beyond the run."""
        return never_starts(self.start, epochs)

    def apply(self, step: TrainingStep) -> Loss:
        """Take one step; the ascent gradient is averaged too, so that all ranks perturb in the same way."""
        starts = step.ctx.t > self.start.to_steps(step.ctx.clock)
        loss = self._descend(step) if starts else Descend().apply(step)
        if self.natural_pass:
            step.pass_natural_()
        return loss

    def _descend(self, step: TrainingStep) -> Loss:
        """Take a step along the gradient at perturbed weights."""
        ctx, crafted = step.ctx, step.craft()
        # The first pass must change neither running statistics nor the memory of the objective.
        scratch_ctx = replace(ctx, memory={name: tensor.clone() for name, tensor in ctx.memory.items()})
        with preserve_buffers(step.model):
            step.compute_grads_(replace(step, ctx=scratch_ctx).loss(crafted))
        # Differs: restored before the step, not after, so weight decay acts on w, not on w + v. ADR 0020
        with perturb_weights(step.model, self.gamma):
            loss = step.loss(crafted)
            step.backward_(loss)
        step.allreduce_grads_(step.model)
        step.optimizer.step()
        return loss


@contextmanager
def perturb_weights(model: nn.Module, gamma: float) -> Generator[None]:
    """Shift weights along their gradients by gamma times their norms; restore every bit on exit."""
    saved = [
        (parameter, parameter.detach().clone(), parameter.grad)
        for parameter in model.parameters()
        if parameter.grad is not None and parameter.dim() > 1
    ]
    try:
        with torch.no_grad():
            for parameter, before, g in saved:
                norm = l2_norm(g)
                shift = g * (gamma * l2_norm(before) / (norm + EPSILON))
                # A gradient that is not finite has no direction; the descent pass decides about the step.
                parameter.add_(torch.where(norm.isfinite(), shift, 0))
        yield
    finally:
        with torch.no_grad():
            for parameter, before, _ in saved:
                parameter.copy_(before)
