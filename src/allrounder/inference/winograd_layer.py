"""A layer that computes 3x3 convolutions by Winograd's algorithm where that is faster."""

from __future__ import annotations

from typing import Any, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from allrounder.inference.winograd import ROTATED_G, FilterMemory, G, PlainFilters
from allrounder.inference.winograd_onednn import PackedFilters, is_onednn_faster
from allrounder.models.layers import TensorOrProxy

MIN_CHANNELS, MAX_CHANNELS = 64, 640
"""With fewer channels plain convolutions are faster; with more, the filters need too much memory."""
MIN_WORK = 2**20
"""Fewest pixels times pairs of channels of an image; with fewer, the overhead of many operations counts."""


class Costs(NamedTuple):
    """The cost per pixel of the products (per pair of channels) and of the transforms (per channel), relative
    to 9 for a plain convolution, and the highest cost that pays off."""

    product: float
    transform: float
    highest: float


MKL_COSTS = Costs(3, 130, 7.2)
"""From measurements on an AMD EPYC (AVX2)."""
ONEDNN_COSTS = Costs(2, 270, 7.2)
"""From measurements on an AMD EPYC (AVX512), on which plain convolutions are faster, too."""


def suits_winograd(layer: nn.Conv2d) -> bool:
    """Whether `WinogradConv` can replace a convolution and may pay off."""
    dense = layer.kernel_size == (3, 3) and layer.stride == (1, 1) and layer.padding in ((1, 1), "same")
    fewest, most = sorted((layer.in_channels, layer.out_channels))
    return is_plain(layer) and dense and fewest >= MIN_CHANNELS and most <= MAX_CHANNELS


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a layer is a convolution on a CPU without groups, dilation or unusual padding."""
    zeros = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
    return zeros and layer.groups == 1 and layer.dilation == (1, 1) and layer.weight.device.type == "cpu"


@final
class WinogradConv(nn.Conv2d):
    """A 3x3 convolution by Winograd's algorithm, for a layer that `suits_winograd`; a plain one for image
    sizes at which it does not pay off.

    The transformed filters, one for each direction, take eight times the memory of the filter. Differentiable
    only in its input.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        """Use the parameters of a layer, under the same names."""
        super().__init__(layer.in_channels, layer.out_channels, 3, padding=1, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        in_onednn = layer.weight.dtype == torch.float32 and is_onednn_faster()
        self.costs = ONEDNN_COSTS if in_onednn else MKL_COSTS
        self.library = "oneDNN" if in_onednn else "MKL" if torch.backends.mkl.is_available() else "BLAS"
        """What computes the products of matrices."""
        kind = PackedFilters if in_onednn else PlainFilters
        self.filters: tuple[FilterMemory, FilterMemory] = (kind(), kind())
        """The transformed filters of the forward and the backward pass."""

    def refresh_(self) -> None:
        """Call this after a change of the weight; the filters are transformed when they are needed."""
        for filters in self.filters:
            filters.is_stale = True

    def pays_off(self, height: int, width: int) -> bool:
        """Whether Winograd's algorithm is faster for images of a size. It depends on the machine and on
        nothing else, so that a run computes the same way when it continues."""
        tiles = -(-height // 4) * -(-width // 4)
        inputs, outputs = self.in_channels, self.out_channels
        cost = self.costs.product + self.costs.transform * (1 / inputs + 1 / outputs)
        is_cheaper = 16 * tiles * cost <= self.costs.highest * height * width
        return is_cheaper and height * width * inputs * outputs >= MIN_WORK

    def convolve(self, x: Tensor) -> Tensor:
        """The convolution of x, without its gradient."""
        taps = self.weight.detach().permute(3, 2, 1, 0)
        return self.filters[0].convolve(x, taps, G, self.bias)

    def input_grad(self, g: Tensor) -> Tensor:
        """The gradient of the input, given that of the output: its convolution with the rotated filter."""
        taps = self.weight.detach().permute(3, 2, 0, 1)
        return self.filters[1].convolve(g, taps, ROTATED_G)

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        if not self.pays_off(input.shape[2], input.shape[3]):
            return F.conv2d(input, self.weight, self.bias, padding=1)
        return cast(Tensor, _WinogradFunction.apply(input, self))


@final
class _WinogradFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: WinogradConv) -> Tensor:
        ctx.layer = layer
        return layer.convolve(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.input_grad(gradients[0]), None
