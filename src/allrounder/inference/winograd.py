"""3x3 convolutions with a quarter of the multiplications, for frozen networks on a CPU.

Tiles of 6x6 inputs give 4x4 outputs. Input d, filter g and output y of a tile are

    y = A' [(G g G') * (B' d B)] A,

with a product of 36 numbers instead of 144, and the sum over channels inside the brackets is a product of
matrices. Worth it where there are many channels; the transformed filters take eight times the memory of the
filter, as there is one for each direction. Rounding is about ten times that of the plain convolution. Lavin
and Gray, 2016, Fast algorithms for convolutional neural networks.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from allrounder.models.layers import Flow
from allrounder.types import Images

FEWEST, MOST = 128, 512
"""Channels between which it pays: with fewer, plain convolutions are faster; with more, filters are large."""
B = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0),
     (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))  # fmt: skip
G = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
     (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

Matrix: TypeAlias = tuple[tuple[float | int, ...], ...]
Filters: TypeAlias = Float[Tensor, "36 i o"]


def suits(layer: nn.Conv2d) -> bool:
    """Whether a convolution is of the kind that gains by it."""
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and layer.groups == 1
    small = layer.kernel_size == (3, 3) and layer.padding in ((1, 1), "same")
    dense = layer.stride == (1, 1) == layer.dilation and layer.weight.device.type == "cpu"
    channels = min(layer.in_channels, layer.out_channels), max(layer.in_channels, layer.out_channels)
    return plain and small and dense and channels[0] >= FEWEST and channels[1] <= MOST


@final
class Winograd(nn.Conv2d):
    """A convolution that `suits`, with its parameters under their names; differentiable in images alone."""

    def __init__(self, layer: nn.Conv2d) -> None:
        """Take over the parameters of a layer."""
        super().__init__(layer.in_channels, layer.out_channels, 3, padding=1, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        weight = self.weight.detach()
        self.there, self.back = filters(weight), filters(weight.flip(2, 3).transpose(0, 1))

    def forward(self, input: Flow) -> Flow:
        """The convolution."""
        y = cast(Tensor, _Convolve.apply(input, self.there, self.back))
        return y if self.bias is None else y + self.bias[:, None, None]


@final
class _Convolve(torch.autograd.Function):
    """The gradient of a convolution is one with the filter turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return convolve(x, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return convolve(gradients[0], ctx.back), None, None


def filters(weight: Float[Tensor, "o i 3 3"]) -> Filters:
    """G g G' of every filter."""
    o, i = weight.shape[:2]
    flat = _twice(G, weight.dtype) @ weight.reshape(o * i, 9).T
    return flat.view(36, o, i).transpose(1, 2).contiguous()


def convolve(x: Images, by: Filters) -> Float[Tensor, "n o h w"]:
    """Convolve images, padded by one, with filters; images that are no whole tiles are padded more."""
    (n, c, h, w), o = x.shape, by.shape[2]
    down, right = -(-h // 4), -(-w // 4)
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 4 * right - w + 1, 1, 4 * down - h + 1))
    image, row, column, channel = padded.stride()
    size, strides = (6, 6, n, down, right, c), (row, column, image, 4 * row, 4 * column, channel)
    tiles = padded.as_strided(size, strides).reshape(36, -1)
    products = torch.bmm((_twice(B, x.dtype) @ tiles).view(36, n * down * right, c), by)
    outputs = (_twice(A, x.dtype) @ products.view(36, -1)).view(4, 4, n, down, right, o)
    whole = outputs.permute(2, 3, 0, 4, 1, 5).reshape(n, 4 * down, 4 * right, o)
    return whole[:, :h, :w].permute(0, 3, 1, 2)


@cache
def _twice(rows: Matrix, dtype: torch.dtype) -> Tensor:
    """The matrix that transforms rows and columns of a tile at once."""
    once = torch.tensor(rows, dtype=torch.float64)
    return torch.kron(once, once).to(dtype)
