"""The first convolution of a frozen network on a CPU, with a gradient that knows how few channels there are.

Libraries compute the gradient of a convolution as another one, whose output channels they fill up to a whole
vector: of 16, an image uses 1 or 3. Here it is one product of matrices, which gives what every output sends
to each pixel under the filter, and a sum of these over the places of the filter.
"""

from __future__ import annotations

from typing import Any, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.models.layers import Flow

MOST = 3
"""Channels of the images up to which it pays."""


def suits(layer: nn.Conv2d) -> bool:
    """Whether a convolution is of the kind that gains by it."""
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and layer.groups == 1
    simple = layer.dilation == (1, 1) and not isinstance(layer.padding, str)
    return plain and simple and layer.in_channels <= MOST and layer.weight.device.type == "cpu"


@final
class Stem(nn.Conv2d):
    """A convolution that `suits`, with its parameters under their names; differentiable in images alone."""

    def __init__(self, layer: nn.Conv2d) -> None:
        """Take over the parameters of a layer."""
        size = layer.in_channels, layer.out_channels, cast(tuple[int, int], layer.kernel_size)
        place: Any = {"stride": layer.stride, "padding": layer.padding}
        super().__init__(*size, **place, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        # A row for every channel of the image and place under the filter.
        self.back = self.weight.detach().permute(1, 2, 3, 0).reshape(-1, layer.out_channels).contiguous()

    def forward(self, input: Flow) -> Flow:
        """The convolution."""
        return cast(Tensor, _Convolve.apply(input, self))


@final
class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Stem) -> Tensor:
        ctx.layer, ctx.size = layer, x.shape
        return F.conv2d(x, layer.weight, layer.bias, layer.stride, cast(tuple[int, int], layer.padding))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return spread(gradients[0], ctx.layer, ctx.size), None


def spread(g: Tensor, layer: Stem, size: torch.Size) -> Tensor:
    """The gradient with respect to images of this size, from that with respect to the outputs."""
    (n, o, down, right), (_, c, h, w) = g.shape, size
    (high, wide), (s, t) = layer.kernel_size, layer.stride
    top, left = cast(tuple[int, int], layer.padding)
    # Image by image: in one product for all, where an image stands would change its bits.
    flat = g.permute(0, 2, 3, 1).reshape(n, down * right, o)
    sent = torch.bmm(layer.back.expand(n, -1, -1), flat.transpose(1, 2)).view(n, c, high, wide, down, right)
    # Pixels that no filter reaches stay zero; what falls on the padding is cut off.
    padded = g.new_zeros(n, c, h + 2 * top, w + 2 * left)
    for i in range(high):
        for j in range(wide):
            reached = padded[:, :, i : i + s * (down - 1) + 1 : s, j : j + t * (right - 1) + 1 : t]
            reached += sent[:, :, i, j]
    whole = padded[:, :, top : top + h, left : left + w]
    return whole.contiguous(memory_format=torch.channels_last)
