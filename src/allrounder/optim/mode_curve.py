"""Mode connectivity: train a curve of networks between two trained ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import NonNegativeFloat, frozen_config
from allrounder.nn.amp import unwrap
from allrounder.nn.state import bezier, copy_, strip_prefix
from allrounder.objectives.base import Objective
from allrounder.optim.base import TrainingStep, Update
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Loss, NamedTensors, Weights

FIRST_PREFIX, SECOND_PREFIX = "first.", "second."


@final
@frozen_config
class ModeCurve(Update):
    """Train a curve: every step draws a point s in [0, 1) and descends the loss of the network there.

    phi(s) = (1-s)^2 w1 + 2s(1-s) c + s^2 w2. w1 and w2 are the two runs that training starts from and stay
    fixed; c is trained and starts half-way between them, so the curve starts as a straight line. Images are
    crafted against phi(s). The gradient of c is 2s(1-s) (g + weight_decay phi(s)), with g the gradient at
    phi(s). The running statistics of the network are not on the curve: they follow the phi(s) of each step.

    Garipov et al., 2018, Loss surfaces, mode connectivity, and fast ensembling of DNNs.
    """

    num_init_runs: ClassVar[int | None] = 2

    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of phi(s), not of c: half of it times |phi(s)|^2 is added to the loss. The logged loss
    does not contain it."""

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """Weight decay of the optimiser, which would decay c, and c is not a network on the curve."""
        decay = getattr(optimizer, "weight_decay", 0.0)
        message = (
            f"the optimiser has weight decay {decay:g}, expected 0: it would decay c; set it here instead"
        )
        return [("weight_decay", message)] if decay else []

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """Zeros for the parameters of the two ends."""
        return {
            f"{prefix}{name}": torch.zeros_like(parameter, requires_grad=False)
            for prefix in (FIRST_PREFIX, SECOND_PREFIX)
            for name, parameter in model.named_parameters()
        }

    def set_init_(self, memory: NamedTensors, members: Sequence[NamedTensors]) -> None:
        """Store the parameters of the two ends."""
        for prefix, weights in zip((FIRST_PREFIX, SECOND_PREFIX), members, strict=True):
            end = strip_prefix(prefix, memory)
            copy_(end, {name: weights[name] for name in end})

    def apply(self, step: TrainingStep) -> Loss:
        """Load phi(s) for crafting and the loss, and c again for the optimiser step."""
        model, memory = step.model, step.ctx.memory
        s = float(step.ctx.rng.fold_in("curve").uniform(torch.zeros((), dtype=torch.float64)))
        params: Weights = {name: parameter.detach() for name, parameter in unwrap(model).named_parameters()}
        c = {name: tensor.clone() for name, tensor in params.items()}
        phi = bezier(s, strip_prefix(FIRST_PREFIX, memory), c, strip_prefix(SECOND_PREFIX, memory))
        try:
            copy_(params, phi)
            loss = step.loss(step.craft())
            step.backward_(loss)
        finally:
            copy_(params, c)
        with torch.no_grad():
            for name, parameter in unwrap(model).named_parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(phi[name], alpha=self.weight_decay).mul_(2 * s * (1 - s))
        step.allreduce_grads_(model)
        step.optimizer.step()
        return loss
