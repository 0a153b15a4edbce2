"""Adaptive gradient reconstruction: an update that keeps the natural loss from rising."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from allrounder.config.fields import Flag, PositiveFloat, frozen_config
from allrounder.config.time import Time
from allrounder.objectives.base import Objective
from allrounder.objectives.natural import Natural
from allrounder.optim.base import EPSILON, NaturalPass, TrainingStep, l2_norm, never_starts
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Loss, Passes


@final
@frozen_config
class Agr(NaturalPass):
    """Adaptive gradient reconstruction (AGR): edit the gradient of any objective with the natural gradient.

    Before `start` this is plain descent. From then on, separately for every parameter tensor, with g1 the
    objective's gradient, g2 that of CE(f(x), y), and cs = <g1, g2> / (|g1| |g2|):
        g = g1 - (<g1, g2> / |g2|^2) g2     if cs <= 0: the component that raises the natural loss is removed;
        g = cs g2 + (1 - cs) g1             otherwise;
        g <- min(1, clip / |g|) g
    From `start` on, the natural images pass the network first, in training mode, so they also update running
    statistics; with `natural_pass`, before `start` too.
    Tong et al., 2024, Balancing generalization and robustness in adversarial training via steering through
    clean and adversarial gradient directions.
    """

    whole_batch: ClassVar[bool] = False

    start: Time = Time.parse("77.5%")
    """When editing starts: after 155 of 200 epochs, as released."""
    clip: PositiveFloat = 0.1
    """The largest norm of an edited gradient, separately for every tensor."""
    natural_pass: Flag = False
    """Whether natural images update running statistics before `start` as well, as in the released code."""

    def passes(self, objective: Objective) -> Passes:
        """One more forward and backward, from `start` on."""
        return objective.passes() + Passes(1, 1)

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """A start beyond the run, or a natural objective."""
        problems = never_starts(self.start, epochs)
        if isinstance(objective.core, Natural):
            message = "the objective is natural, so there is nothing to reconstruct; use descend"
            problems.append(("kind", message))
        return problems

    def apply(self, step: TrainingStep) -> Loss:
        """Take one step; both gradients are averaged over ranks before the edit, which is not linear."""
        if step.ctx.t <= self.start.to_steps(step.ctx.clock):
            return self._descend(step)
        crafted = step.craft()
        natural = step.natural_loss()
        step.compute_grads_(natural)
        natural_grads = [(parameter, parameter.grad) for parameter in step.model.parameters()]
        loss = step.loss(crafted)
        step.compute_grads_(loss)
        for parameter, natural_grad in natural_grads:
            if parameter.grad is not None:
                g2 = torch.zeros_like(parameter.grad) if natural_grad is None else natural_grad
                parameter.grad.copy_(reconstruct(parameter.grad, g2, self.clip))
        step.optimizer.step()
        return Loss(loss.total, {**loss.parts, "natural": natural.total.detach()})

    def _descend(self, step: TrainingStep) -> Loss:
        """Take a step of plain descent, after the natural images if they pass."""
        crafted = step.craft()
        if self.natural_pass:
            step.pass_natural_()
        loss = step.loss(crafted)
        step.compute_grads_(loss)
        step.optimizer.step()
        return loss


def reconstruct(g1: Tensor, g2: Tensor, clip: float) -> Tensor:
    """The gradient g1 of one tensor, edited with g2 and clipped; branch-free, so that no device waits. If g2
    is zero, g1 is only clipped. (The released code divides by zero.)"""
    dot = (g1 * g2).sum()
    n1, n2 = l2_norm(g1), l2_norm(g2)
    cosine = dot / (n1 * n2 + EPSILON)
    opposed = cosine <= 0
    # Two divisions instead of <g1, g2> / |g2|^2: the square of a small norm underflows to zero.
    along = torch.where(n2 > 0, dot / n2.clamp(min=torch.finfo(n2.dtype).tiny) / n2.clamp(min=EPSILON), 0)
    g = torch.where(opposed, 1, 1 - cosine) * g1 + torch.where(opposed, -along, cosine) * g2
    return g * (clip / l2_norm(g).clamp(min=EPSILON)).clamp(max=1)
