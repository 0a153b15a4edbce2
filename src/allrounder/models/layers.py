"""The pieces that the architectures share: convolutions, stages of blocks, initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F

if TYPE_CHECKING:
    Flow: TypeAlias = Tensor
else:
    # While a network's structure is traced, a stand-in takes the place of the tensor.
    Flow = Tensor | Proxy

Block: TypeAlias = Callable[[int, int, int], nn.Module]
"""Makes one block from its input channels, output channels and stride."""


THIN = 8
"""With fewer channels, the gradient of a 1x1 convolution with a stride, in channels_last on a CPU, writes
beyond its memory: torch 2.13, oneDNN."""


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias whose padding keeps the image size at stride 1."""
    kind = Skipping if size == 1 and stride > 1 and inputs < THIN else nn.Conv2d
    return kind(inputs, outputs, size, stride, padding=size // 2, bias=False)


@final
class Skipping(nn.Conv2d):
    """A 1x1 convolution with a stride, as one without on the pixels that it uses."""

    def forward(self, input: Flow) -> Flow:
        """The convolution."""
        s, t = self.stride
        return F.conv2d(input[:, :, ::s, ::t], self.weight, self.bias)


def stage(block: Block, inputs: int, outputs: int, count: int, stride: int) -> nn.Sequential:
    """Blocks of one width in a row; the first changes the channels and the image size."""
    rest = [block(outputs, outputs, 1) for _ in range(count - 1)]
    return nn.Sequential(block(inputs, outputs, stride), *rest)


def pool(x: Flow) -> Flow:
    """The average over all pixels, (n, c, h, w) to (n, c), so that any image size will do."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@final
class Average(nn.Module):
    """The average over each of so many by so many fields, whatever the size of the image.

    On the way back from `flatten` a gradient is not channels_last, and then torch takes several times as
    long for the same numbers on a CPU; so here it is brought into the layout that the averages have.
    """

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.fields = fields

    def forward(self, input: Flow) -> Flow:
        """The averages, (n, c, fields, fields)."""
        return cast(Tensor, _SameLayout.apply(F.adaptive_avg_pool2d(input, self.fields)))


@final
class _SameLayout(torch.autograd.Function):
    """Nothing, but that the gradient has the layout of what went in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        last = inputs[0].stride(1) == 1
        ctx.layout = torch.channels_last if last else torch.contiguous_format

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous(memory_format=ctx.layout)


def uniform_(network: nn.Module) -> None:
    """Initialise as torch does by default, but in so many words.

    Weights and biases of convolutions and linear layers are U(-b, b) with b = 1 / sqrt(fan_in); batch-norm
    scales by 1 and shifts by 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = 1 / math.sqrt(module.weight[0].numel())
                nn.init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def normal_(network: nn.Module) -> None:
    """Initialise convolutions of size s with N(0, 2 / (s * s * c_out)), the rest as `uniform_` does.

    He et al., 2015, Delving deep into rectifiers.
    """
    uniform_(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
