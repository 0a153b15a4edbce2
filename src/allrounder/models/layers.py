"""Layers and initialisations that the architectures share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F
from typing_extensions import override

if TYPE_CHECKING:
    TensorOrProxy: TypeAlias = Tensor
else:
    # torch.fx passes a proxy instead of a tensor while it traces a network.
    TensorOrProxy = Tensor | Proxy

BlockFactory: TypeAlias = Callable[[int, int, int], nn.Module]
"""Builds one block from its input channels, output channels and stride."""

MIN_STRIDED_CHANNELS = 8
"""Fewest input channels of nn.Conv2d as a strided 1x1 convolution. With fewer, its gradient in channels_last
on a CPU writes out of bounds (torch 2.13, oneDNN)."""


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """Build a convolution without bias whose padding keeps the image size at stride 1."""
    cls = StridedConv1x1 if size == 1 and stride > 1 and inputs < MIN_STRIDED_CHANNELS else nn.Conv2d
    return cls(inputs, outputs, size, stride, padding=size // 2, bias=False)


@final
class StridedConv1x1(nn.Conv2d):
    """A strided 1x1 convolution, computed without a stride on the pixels that it uses."""

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        down, right = self.stride
        return F.conv2d(input[:, :, ::down, ::right], self.weight, self.bias)


def make_stages(
    block: BlockFactory, inputs: int, outputs: int, depths: tuple[int, ...]
) -> Iterator[nn.Sequential]:
    """Build stages of `depths` blocks. The first block of a stage changes the channels, to `outputs` in the
    first stage and twice as many in each further one, and halves the image size in all but the first."""
    for number, depth in enumerate(depths):
        rest = [block(outputs, outputs, 1) for _ in range(depth - 1)]
        yield nn.Sequential(block(inputs, outputs, 1 if number == 0 else 2), *rest)
        inputs, outputs = outputs, 2 * outputs


def global_avg_pool(x: TensorOrProxy) -> TensorOrProxy:
    """Average over all pixels, (n, c, h, w) to (n, c)."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@final
class Normalise(nn.Module):
    """(x - mean) / std per channel; the constants are not part of the state dict."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        return (x - self.mean) / self.std


def build_normalise(mean: Sequence[float], std: Sequence[float], channels: int) -> nn.Module:
    """Build the layer; an empty mean is 0, an empty std is 1, and nn.Identity for both empty."""
    for name, constants in (("mean", mean), ("std", std)):
        if constants and len(constants) != channels:
            raise ValueError(
                f"model.{name}: has {len(constants)} numbers, but the images have {channels} channels; "
                "give one number per channel, or none"
            )
    if not mean and not std:
        return nn.Identity()
    return Normalise(mean or [0.0] * channels, std or [1.0] * channels)


@final
class AdaptiveAvgPool(nn.Module):
    """Adaptive average pooling to (output_size, output_size) that keeps the memory format of gradients.

    The gradient of `flatten` is not channels_last, and torch on a CPU then takes several times as long for
    the same numbers. So the gradient is converted to the memory format of the output.
    """

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.output_size = fields

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        return cast(Tensor, _KeepMemoryFormat.apply(F.adaptive_avg_pool2d(input, self.output_size)))


@final
class _KeepMemoryFormat(torch.autograd.Function):
    """The identity, with a gradient in the memory format of the input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        is_channels_last = inputs[0].stride(1) == 1
        ctx.memory_format = torch.channels_last if is_channels_last else torch.contiguous_format

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous(memory_format=ctx.memory_format)


def init_uniform_(network: nn.Module) -> None:
    """Initialise as torch does by default: convolutions and linear layers U(-b, b) with b = 1 / sqrt(fan_in),
    batch-norm 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = 1 / math.sqrt(module.weight[0].numel())
                nn.init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def init_normal_(network: nn.Module) -> None:
    """Initialise convolutions of size s with N(0, 2 / (s * s * c_out)), the rest as `init_uniform_` does.
    He et al., 2015, Delving deep into rectifiers."""
    init_uniform_(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
