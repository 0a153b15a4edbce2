"""Batch-norm over a batch that several ranks share, on any device.

Statistics and gradients are those of the whole batch, so that a group of ranks computes what one rank would.
torch's own synchronised batch-norm works on GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Sum = Callable[[Tensor], None]


def synchronise_(model: nn.Module, sum_: Sum) -> None:
    """Let every batch-norm layer of a network that is in training mode see the whole batch.

    The layers stay what they are, with their names and buffers; only what a forward pass does is replaced.
    """
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.forward = partial(_forward, layer, sum_)


def _forward(layer: _BatchNorm, sum_: Sum, input: Tensor) -> Tensor:
    x = input
    if not layer.training and layer.running_mean is not None:
        return type(layer).forward(layer, x)
    layer._check_input_dim(x)
    with torch.no_grad():
        mean, var, count = _statistics(x, sum_)
        if layer.training:
            _remember(layer, mean, var, count)
    weight = layer.weight if layer.affine else torch.ones_like(mean)
    bias = layer.bias if layer.affine else torch.zeros_like(mean)
    # An attack's loss is a sum over images and asks for no gradients of parameters; that of training is a
    # mean.
    meant = weight.requires_grad
    scale = (var + layer.eps).rsqrt()
    return cast(Tensor, _Normalise.apply(x, weight, bias, mean, scale, count, sum_, meant))  # pyright: ignore[reportUnknownMemberType]


def _statistics(x: Tensor, sum_: Sum) -> tuple[Tensor, Tensor, float]:
    """Mean, biased variance and number of values of every channel, over all ranks; never in half precision,
    which cannot count."""
    x = _precise(x)
    others = [0, *range(2, x.dim())]
    values = x.numel() / x.shape[1]
    first = torch.cat([x.sum(others), x.new_tensor([values])])
    sum_(first)
    count = float(first[-1])
    mean = first[:-1] / count
    spread = (x - _wide(mean, x)).square().sum(others)
    sum_(spread)
    return mean, spread / count, count


def _remember(layer: _BatchNorm, mean: Tensor, var: Tensor, count: float) -> None:
    """Move the running statistics, as batch-norm does."""
    if layer.running_mean is None or layer.running_var is None:
        return
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    rate = layer.momentum
    if rate is None:
        rate = 1 / float(cast(Tensor, layer.num_batches_tracked))
    layer.running_mean.mul_(1 - rate).add_(mean, alpha=rate)
    layer.running_var.mul_(1 - rate).add_(var * (count / max(count - 1, 1)), alpha=rate)


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


@final
class _Normalise(torch.autograd.Function):
    """y = weight * (x - mean) * scale + bias, where mean and scale depend on the x of every rank.

    With xhat = (x - mean) * scale and N values of a channel over all ranks,
        dx = weight * scale * (dy - sum(dy) / N - xhat * sum(dy * xhat) / N)
    where the sums are over all ranks. If the loss is the mean over the batch, a rank that has the share s of
    it descends the mean over its own part, so its dy is 1/s times what it should be: the sums are of s * dy,
    and dx is divided by s again, to fit what comes before in the network.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        scale: Tensor,
        count: float,
        sum_: Sum,
        meant: bool,
    ) -> Tensor:
        """Normalise this rank's values, in the type they have."""
        xhat = (_precise(x) - _wide(mean, x)) * _wide(scale, x)
        ctx.save_for_backward(xhat, weight, scale)
        ctx.count, ctx.sum_, ctx.meant = count, sum_, meant
        return (xhat * _wide(weight, x) + _wide(bias, x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of this rank's values, through the statistics of all."""
        (given,) = gradients
        dy = _precise(given)
        xhat, weight, scale = cast(tuple[Tensor, Tensor, Tensor], ctx.saved_tensors)
        others = [0, *range(2, dy.dim())]
        own = torch.stack([dy.sum(others), (dy * xhat).sum(others)])
        share = dy.numel() / dy.shape[1] / ctx.count if ctx.meant else 1.0
        total = own * share
        ctx.sum_(total)
        total /= ctx.count * share
        dx = _wide(weight * scale, dy) * (dy - _wide(total[0], dy) - xhat * _wide(total[1], dy))
        return dx.to(given.dtype), own[1], own[0], None, None, None, None, None
