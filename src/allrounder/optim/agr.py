"""Adaptive gradient reconstruction: an update that keeps the natural loss from rising."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import Positive, value
from allrounder.config.time import Time
from allrounder.objectives.base import Objective, fit
from allrounder.objectives.natural import Natural
from allrounder.optim.base import Descend, Update, check_finite, length, too_late
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, Passes

TINY = 1e-20


@final
@value
class Reconstructed(Update):
    """Adaptive gradient reconstruction (AGR): edit the gradient of any objective against the natural one.

    Before `start` this is plain descent. From then on, for every parameter tensor by itself, with g1 the
    objective's gradient, g2 that of CE(f(x), y), and cs = <g1, g2> / (|g1| |g2|):
        g = g1 - (<g1, g2> / |g2|^2) g2     where cs <= 0: what would raise the natural loss is dropped;
        g = cs g2 + (1 - cs) g1             elsewhere;
        g <- min(1, clip / |g|) g
    The natural images go through the network first, in training mode, so running statistics see them too.
    Tong et al., 2024, Balancing generalization and robustness in adversarial training via steering through
    clean and adversarial gradient directions.
    """

    whole_batch: ClassVar[bool] = False

    start: Time = Time.read("77.5%")
    """When editing begins: after 155 of 200 epochs, as released."""
    clip: Positive = 0.1
    """The largest norm of an edited gradient, for every tensor by itself."""

    def passes(self, objective: Objective) -> Passes:
        """One pair more, from `start` on."""
        return objective.passes() + Passes(1, 1)

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """A start that never comes, or nothing to reconstruct."""
        found = too_late(self.start, epochs)
        if isinstance(objective, Natural):
            found.append(
                ("kind", "the objective is natural, so there is nothing to reconstruct; use descend")
            )
        return found

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """One step; both gradients are averaged before the edit, which is not linear."""
        if ctx.t <= self.start.steps(ctx.clock):
            return Descend().apply(model, optimizer, objective, batch, ctx, reduce_)
        crafted = objective.craft(model, batch, ctx)
        model.train()
        optimizer.zero_grad(set_to_none=True)
        natural = fit(model(batch.x), batch)
        check_finite(natural)
        natural.total.backward()
        reduce_(model)
        held = [(parameter, parameter.grad) for parameter in model.parameters()]
        optimizer.zero_grad(set_to_none=True)
        loss = objective.loss(model, batch, crafted, ctx)
        check_finite(loss)
        loss.total.backward()
        reduce_(model)
        for parameter, g2 in held:
            if parameter.grad is not None:
                against = torch.zeros_like(parameter.grad) if g2 is None else g2
                parameter.grad.copy_(reconstruct(parameter.grad, against, self.clip))
        optimizer.step()
        return Loss(loss.total, {**loss.parts, "natural": natural.total.detach()})


def reconstruct(g1: Tensor, g2: Tensor, clip: float) -> Tensor:
    """One tensor's gradient, edited against another and clipped; without a branch, so that no device waits.

    Where g2 is zero there is nothing to be against, and g1 is only clipped. (The released code divides by
    zero there.)
    """
    dot, n1, n2 = (g1 * g2).sum(), length(g1), length(g2)
    cosine = dot / (n1 * n2 + TINY)
    against = cosine <= 0
    # Not <g1, g2> / |g2|^2 at once: the square of a small norm is zero.
    along = torch.where(n2 > 0, dot / n2.clamp(min=torch.finfo(n2.dtype).tiny) / n2.clamp(min=TINY), 0)
    g = torch.where(against, 1, 1 - cosine) * g1 + torch.where(against, -along, cosine) * g2
    return g * (clip / length(g).clamp(min=TINY)).clamp(max=1)
