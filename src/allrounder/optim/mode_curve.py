"""Descend along a curve of networks between two that are trained already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import NonNegative, value
from allrounder.nn.amp import bare
from allrounder.nn.state import Weights, bezier, copy_, under
from allrounder.objectives.base import Objective
from allrounder.optim.base import Update, check_finite
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss

FIRST, SECOND = "first.", "second."


@final
@value
class OnCurve(Update):
    """Bend a curve: every step draws one place s in [0, 1) and descends the loss of the network there.

    phi(s) = (1-s)^2 w1 + 2s(1-s) c + s^2 w2, with w1 and w2 the two runs that training starts from, which
    stay, and c what is trained, which begins half-way between them: a straight line. Images are crafted
    against phi(s). The gradient of c is 2s(1-s) (g + weight_decay phi(s)), with g the gradient at phi(s).
    The network's running statistics are not on the curve: they follow whatever phi(s) a step is at.

    Garipov et al., 2018, Loss surfaces, mode connectivity, and fast ensembling of DNNs.
    """

    members: ClassVar[int | None] = 2

    weight_decay: NonNegative = 0.0
    """Of phi(s), not of c: half of it times the squared length of phi(s) is added to the loss. The logged
    loss is without it."""

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """The optimiser must not pull c to zero, which is no network of the curve."""
        pull = getattr(optimizer, "weight_decay", 0.0)
        said = f"the optimiser has {pull:g} of its own, expected 0: it would decay c; decay phi(s), here"
        return [("weight_decay", said)] if pull else []

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """Room for the two ends."""
        return {
            f"{end}{name}": torch.zeros_like(parameter, requires_grad=False)
            for end in (FIRST, SECOND)
            for name, parameter in model.named_parameters()
        }

    def begin_(self, memory: Mapping[str, Tensor], members: Sequence[Mapping[str, Tensor]]) -> None:
        """Keep the parameters of the two ends."""
        for end, weights in zip((FIRST, SECOND), members, strict=True):
            kept = under(end, memory)
            copy_(kept, {name: weights[name] for name in kept})

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """Put phi(s) in the network's place for crafting and the loss, and c back for the step."""
        s = float(ctx.draws.at("curve").uniform(torch.zeros((), dtype=torch.float64)))
        live: Weights = {name: parameter.detach() for name, parameter in bare(model).named_parameters()}
        c = {name: tensor.clone() for name, tensor in live.items()}
        phi = bezier(s, under(FIRST, ctx.memory), c, under(SECOND, ctx.memory))
        try:
            copy_(live, phi)
            crafted = objective.craft(model, batch, ctx)
            model.train()
            loss = objective.loss(model, batch, crafted, ctx)
            check_finite(loss)
            optimizer.zero_grad(set_to_none=True)
            loss.total.backward()
        finally:
            copy_(live, c)
        with torch.no_grad():
            for name, parameter in bare(model).named_parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(phi[name], alpha=self.weight_decay).mul_(2 * s * (1 - s))
        reduce_(model)
        optimizer.step()
        return loss
