"""RAMP's gradient projection: a natural copy trains beside the learner, and its progress is let in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import Share, value
from allrounder.nn.amp import bare, guard_
from allrounder.nn.state import Weights, copy_, snapshot, under, weights_of
from allrounder.objectives.base import Objective, fit
from allrounder.optim.base import Descend, Update, check_finite
from allrounder.optim.optimizers import Optimizer, Sgd
from allrounder.types import Batch, Context, Loss, Passes

START, COPY, MOMENTUM = "projected.start.", "projected.natural.", "projected.momentum."


@final
@value
class Projected(Update):
    """Gradient projection (of RAMP, for any objective): at the end of every epoch,

        w = w_0 + (1 - beta) g_r + beta max(cos(g_r, g_n), 0) g_n,    g_r = w_r - w_0,    g_n = w_n - w_0,

    for every tensor on its own, batch-norm statistics included; w_r is what the objective made of the weights
    w_0 in the epoch, w_n what natural training on the same batches made of a copy. The copy has momentum of
    its own, and rate, weight decay and training mode as the learner. So natural progress enters as far as it
    points the same way. Whole numbers and scalars are those of w_r.

    An epoch starts from the weights it finds, for w_0 and copy alike: an exchange at an epoch's end is
    respected. One within an epoch moves w_r alone, and so counts as robust progress.
    Jiang and Singh, 2024, RAMP: boosting adversarial robustness against multiple lp perturbations for
    universal robustness.
    """

    beta: Share = 0.5
    """The share of natural progress; 0 is plain descent."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """The epoch's first weights, the copy's weights, and the copy's momentum."""
        live = weights_of(model)
        still = {name: torch.zeros_like(p.detach()) for name, p in model.named_parameters()}
        return {
            **{f"{START}{name}": tensor for name, tensor in snapshot(live).items()},
            **{f"{COPY}{name}": tensor for name, tensor in snapshot(live).items()},
            **{f"{MOMENTUM}{name}": tensor for name, tensor in still.items()},
        }

    def reset_(self, memory: Mapping[str, Tensor]) -> None:
        """The copy's momentum."""
        for tensor in under(MOMENTUM, memory).values():
            tensor.zero_()

    def passes(self, objective: Objective) -> Passes:
        """The objective's, and a pair for the copy."""
        return objective.passes() + Passes(1, 1)

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """The copy knows how to take steps of SGD alone."""
        if isinstance(optimizer, Sgd):
            return []
        got = f"got {type(optimizer).__name__.lower()}"
        return [
            ("kind", f'projected trains a natural copy by sgd, {got}; set optimizer = {{ kind = "sgd" }}')
        ]

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """A step of the learner, one of the copy, and the projection when the epoch is done."""
        live, start, copy = weights_of(bare(model)), under(START, ctx.memory), under(COPY, ctx.memory)
        if (ctx.t - 1) % ctx.clock.steps == 0:
            copy_(start, live)
            copy_(copy, live)
        loss = Descend().apply(model, optimizer, objective, batch, ctx, reduce_)
        robust = snapshot(live)
        copy_(live, copy)
        # Differs: released code trains the copy before the robust epoch, in a pass of its own over batches in
        # another order. ADR 0020
        try:
            _natural_step(model, optimizer, batch, under(MOMENTUM, ctx.memory), reduce_)
            copy_(copy, live)
        finally:
            copy_(live, robust)
        if ctx.epoch_done:
            copy_(live, projected(start, robust, copy, self.beta))
        return loss


def projected(
    start: Mapping[str, Tensor], robust: Mapping[str, Tensor], natural: Mapping[str, Tensor], beta: float
) -> Weights:
    """Robust progress, and natural progress as far as it points the same way, tensor by tensor.

    Written as a change of the robust weights, so that beta = 0 gives them to the bit.
    """
    found: Weights = {}
    for name, w in robust.items():
        if w.dim() == 0 or not w.is_floating_point():
            found[name] = w
            continue
        g_r, g_n = w - start[name], natural[name] - start[name]
        lengths = g_r.square().sum().sqrt() * g_n.square().sum().sqrt()
        cosine = (g_r * g_n).sum() / lengths.clamp(min=torch.finfo(w.dtype).tiny)
        found[name] = w + beta * (cosine.clamp(min=0) * g_n - g_r)
    return found


def _natural_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    momentum: Mapping[str, Tensor],
    reduce_: Callable[[nn.Module], None],
) -> None:
    """Natural training of whatever weights the model has, with the optimiser's settings but none of its
    state; where a loss scale finds an overflow, no gradient is left and nothing moves."""
    model.train()
    loss = fit(model(batch.x), batch)
    check_finite(loss)
    optimizer.zero_grad(set_to_none=True)
    loss.total.backward()
    reduce_(model)
    guard_(model, optimizer)
    buffers = {parameter: momentum[name] for name, parameter in bare(model).named_parameters()}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in cast(list[nn.Parameter], group["params"]):
                _sgd_(parameter, buffers[parameter], group)
    optimizer.zero_grad(set_to_none=True)


def _sgd_(parameter: nn.Parameter, buffer: Tensor, group: Mapping[str, Any]) -> None:
    """One step of SGD, as torch takes it: a buffer of zeros and the first gradient give the first buffer."""
    if parameter.grad is None:
        return
    g = parameter.grad.add(parameter, alpha=group["weight_decay"])
    buffer.mul_(group["momentum"]).add_(g)
    d = g.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
    parameter.sub_(d, alpha=group["lr"])
