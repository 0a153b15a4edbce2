"""Synchronised batch-norm for a batch that several ranks share, on any device.

Statistics and gradients are those of the whole batch, so a group of ranks computes what one rank would.
torch's own SyncBatchNorm only works on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Sum = Callable[[Tensor], None]


def sync_batchnorm_(model: nn.Module, sum_: Sum) -> None:
    """Make every batch-norm layer of a network use the statistics of the whole batch in training mode. Only
    the forward pass of the layers is replaced; their types, names and buffers stay the same."""
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
            _update_running_stats(layer, mean, var, count)
    weight = layer.weight if layer.affine else torch.ones_like(mean)
    bias = layer.bias if layer.affine else torch.zeros_like(mean)
    # Attacks sum their loss over images and need no parameter gradients; training averages its loss.
    is_mean_loss = weight.requires_grad
    scale = (var + layer.eps).rsqrt()
    return cast(Tensor, _Normalise.apply(x, weight, bias, mean, scale, count, sum_, is_mean_loss))  # pyright: ignore[reportUnknownMemberType]


def _statistics(x: Tensor, sum_: Sum) -> tuple[Tensor, Tensor, float]:
    """Mean, biased variance and number of values of every channel over all ranks, in float32 or better,
    because half precision cannot count that far."""
    x = _at_least_float32(x)
    dims = [0, *range(2, x.dim())]
    values = x.numel() / x.shape[1]
    sums = torch.cat([x.sum(dims), x.new_tensor([values])])
    sum_(sums)
    count = float(sums[-1])
    mean = sums[:-1] / count
    squares = (x - _per_channel(mean, x)).square().sum(dims)
    sum_(squares)
    return mean, squares / count, count


def _update_running_stats(layer: _BatchNorm, mean: Tensor, var: Tensor, count: float) -> None:
    """Update the running statistics as torch's batch-norm does."""
    if layer.running_mean is None or layer.running_var is None:
        return
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    tracked = layer.num_batches_tracked
    rate = 1 / float(cast(Tensor, tracked)) if layer.momentum is None else layer.momentum
    layer.running_mean.mul_(1 - rate).add_(mean, alpha=rate)
    layer.running_var.mul_(1 - rate).add_(var * (count / max(count - 1, 1)), alpha=rate)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


@final
class _Normalise(torch.autograd.Function):
    """y = weight * (x - mean) * scale + bias, where mean and scale depend on the x of every rank.

    With xhat = (x - mean) * scale and N values of a channel over all ranks,
        dx = weight * scale * (dy - sum(dy) / N - xhat * sum(dy * xhat) / N)
    where the sums are over all ranks. If the loss is the mean over the batch, a rank with the share s of the
    images uses the mean over its own images, so its dy is 1/s times that of the whole batch. The sums are
    therefore over s * dy, and dx is divided by s again to match the gradients of the layers before.
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
        is_mean_loss: bool,
    ) -> Tensor:
        """Normalise this rank's values and return them in their own dtype."""
        xhat = (_at_least_float32(x) - _per_channel(mean, x)) * _per_channel(scale, x)
        ctx.save_for_backward(xhat, weight, scale)
        ctx.count, ctx.sum_, ctx.is_mean_loss = count, sum_, is_mean_loss
        return (xhat * _per_channel(weight, x) + _per_channel(bias, x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of this rank's values, through the statistics of all ranks."""
        dy = _at_least_float32(gradients[0])
        xhat, weight, scale = cast(tuple[Tensor, Tensor, Tensor], ctx.saved_tensors)
        dims = [0, *range(2, dy.dim())]
        own = torch.stack([dy.sum(dims), (dy * xhat).sum(dims)])
        share = dy.numel() / dy.shape[1] / ctx.count if ctx.is_mean_loss else 1.0
        total = own * share
        ctx.sum_(total)
        total /= ctx.count * share
        centred = dy - _per_channel(total[0], dy) - xhat * _per_channel(total[1], dy)
        dx = _per_channel(weight * scale, dy) * centred
        return dx.to(gradients[0].dtype), own[1], own[0], None, None, None, None, None
