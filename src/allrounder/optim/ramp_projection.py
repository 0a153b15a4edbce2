"""RAMP's gradient projection: a natural copy trains beside the learner, and its progress is mixed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import Share, frozen_config
from allrounder.nn.amp import unwrap
from allrounder.nn.state import clone, copy_, strip_prefix, weights_of
from allrounder.objectives.base import Objective
from allrounder.optim.base import Descend, TrainingStep, Update, l2_norm
from allrounder.optim.optimizers import Optimizer, Sgd
from allrounder.types import Loss, NamedTensors, Passes, Weights

START_PREFIX, COPY_PREFIX, MOMENTUM_PREFIX = "projected.start.", "projected.natural.", "projected.momentum."


@final
@frozen_config
class GradientProjection(Update):
    """Gradient projection (of RAMP, for any objective): at the end of every epoch,

        w = w_0 + (1 - beta) g_r + beta max(cos(g_r, g_n), 0) g_n,    g_r = w_r - w_0,    g_n = w_n - w_0,

    separately for every tensor, including batch-norm statistics. The epoch starts from the weights w_0. The
    objective changes them to w_r, and natural training of a copy on the same batches changes them to w_n. The
    copy has its own momentum, and the learning rate and weight decay of the learner. So natural progress
    counts as far as it points in the same direction. Integers and scalars are those of w_r.

    w_0 and the copy start every epoch from the current weights, so an exchange at the end of an epoch is
    respected. An exchange within an epoch changes only w_r, and so counts as robust progress.
    Jiang and Singh, 2024, RAMP: boosting adversarial robustness against multiple lp perturbations for
    universal robustness.
    """

    beta: Share = 0.5
    """The share of natural progress; 0 is plain descent."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights at the start of the epoch, the copy's weights, and the copy's momentum."""
        weights = weights_of(model)
        momentum = {name: torch.zeros_like(p.detach()) for name, p in model.named_parameters()}
        return {
            **{f"{START_PREFIX}{name}": tensor for name, tensor in clone(weights).items()},
            **{f"{COPY_PREFIX}{name}": tensor for name, tensor in clone(weights).items()},
            **{f"{MOMENTUM_PREFIX}{name}": tensor for name, tensor in momentum.items()},
        }

    def reset_momentum_(self, memory: NamedTensors) -> None:
        """Reset the copy's momentum."""
        for tensor in strip_prefix(MOMENTUM_PREFIX, memory).values():
            tensor.zero_()

    def passes(self, objective: Objective) -> Passes:
        """The passes of the objective, and one forward and backward for the copy."""
        return objective.passes() + Passes(1, 1)

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """An optimiser other than SGD, which the copy is trained with."""
        if isinstance(optimizer, Sgd):
            return []
        got = type(optimizer).__name__.lower()
        message = f"gradient-projection trains a natural copy by sgd, got {got}; set optimizer.kind to sgd"
        return [("kind", message)]

    def apply(self, step: TrainingStep) -> Loss:
        """Take a step of the learner and one of the copy, and project at the end of an epoch."""
        weights = weights_of(unwrap(step.model))
        start = strip_prefix(START_PREFIX, step.ctx.memory)
        copy = strip_prefix(COPY_PREFIX, step.ctx.memory)
        if step.starts_epoch:
            copy_(start, weights)
            copy_(copy, weights)
        loss = Descend().apply(step)
        robust = clone(weights)
        copy_(weights, copy)
        # Differs: released code trains the copy before the robust epoch, in a separate pass over batches in
        # another order. ADR 0020
        try:
            _take_natural_step(step)
            copy_(copy, weights)
        finally:
            copy_(weights, robust)
        if step.ctx.ends_epoch:
            copy_(weights, project_weights(start, robust, copy, self.beta))
        return loss


def project_weights(start: NamedTensors, robust: NamedTensors, natural: NamedTensors, beta: float) -> Weights:
    """Robust progress, and natural progress as far as it points in the same direction, tensor by tensor.
    Computed as a change of the robust weights, so that beta = 0 returns them bit for bit."""
    projected: Weights = {}
    for name, w in robust.items():
        if w.dim() == 0 or not w.is_floating_point():
            projected[name] = w
            continue
        g_r, g_n = w - start[name], natural[name] - start[name]
        norms = l2_norm(g_r) * l2_norm(g_n)
        cosine = (g_r * g_n).sum() / norms.clamp(min=torch.finfo(w.dtype).tiny)
        projected[name] = w + beta * (cosine.clamp(min=0) * g_n - g_r)
    return projected


def _take_natural_step(step: TrainingStep) -> None:
    """Train the current weights naturally, with the optimiser's settings and the momentum of the copy."""
    step.compute_grads_(step.natural_loss())
    momentum = strip_prefix(MOMENTUM_PREFIX, step.ctx.memory)
    buffers = {parameter: momentum[name] for name, parameter in unwrap(step.model).named_parameters()}
    with torch.no_grad():
        for group in step.optimizer.param_groups:
            for parameter in cast(list[nn.Parameter], group["params"]):
                _sgd_step_(parameter, buffers[parameter], group)
    step.optimizer.zero_grad(set_to_none=True)


def _sgd_step_(parameter: nn.Parameter, buffer: Tensor, group: Mapping[str, Any]) -> None:
    """One step of SGD as in torch: a zero buffer plus the first gradient is torch's first buffer."""
    if parameter.grad is None:
        return
    g = parameter.grad.add(parameter, alpha=group["weight_decay"])
    buffer.mul_(group["momentum"]).add_(g)
    d = g.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
    parameter.sub_(d, alpha=group["lr"])
