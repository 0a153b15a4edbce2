"""Faster convolutions on a CPU, for folded networks that a search queries many thousand times.

`WinogradConv` computes 3x3 convolutions of many channels with a quarter of the multiplications. `StemConv`
speeds up the gradient of the first convolution. Both are differentiable only in their input.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from allrounder.inference.fold import Folded
from allrounder.models.layers import TensorOrProxy
from allrounder.rng import Rng
from allrounder.types import Images

LOG = logging.getLogger("allrounder")
MIN_SQUARED_NORM = 1e-30
TOLERANCES = (1e-3, 2e-2)
"""The largest relative differences of logits, and of gradients, which a ReLU switched by rounding changes."""
WINOGRAD_MIN_CHANNELS, WINOGRAD_MAX_CHANNELS = 128, 512
"""With fewer channels plain convolutions are faster; with more, the filters need too much memory."""
STEM_MAX_CHANNELS = 3
"""The largest number of input channels for which `StemConv` pays off."""
B = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0),
     (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))  # fmt: skip
G = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
     (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

Matrix: TypeAlias = tuple[tuple[float | int, ...], ...]
Filters: TypeAlias = Float[Tensor, "36 i o"]


def with_fast_convs(folded: Folded, like: Images) -> Folded:
    """A copy of a folded network with faster layers, or the network itself if none of its layers is suited.

    The copy is used only if its logits and gradients agree with those of the network on random images of the
    shape of `like`. These images are always the same, so the choice does not depend on the data.
    """
    network = copy.deepcopy(folded.network)
    if not _replace_convs(network):
        return folded
    fast = Folded(network, folded.pairs)
    x = Rng(0).fold_in("quick").uniform(like)
    exact, approximate = _logits_and_grad(folded, x), _logits_and_grad(fast, x)
    for expected, got, tolerance in zip(exact, approximate, TOLERANCES, strict=True):
        squared_norm = max(float(expected.square().sum()), MIN_SQUARED_NORM)
        difference = math.sqrt(float((expected - got).square().sum()) / squared_norm)
        if not difference <= tolerance:
            LOG.info("attacks use plain convolutions: the fast ones differ by %.1e relatively", difference)
            return folded
    return fast


def _replace_convs(network: nn.Module) -> bool:
    """Replace convolutions by faster ones; return whether there were any."""
    layers = list(cast(Iterable[tuple[str, nn.Module]], network.named_modules()))
    replaced = False
    for name, conv in ((name, layer) for name, layer in layers if isinstance(layer, nn.Conv2d)):
        if suited := [fast for suits, fast in FAST_CONVS if suits(conv)]:
            parent, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(parent), leaf, suited[0](conv))
            replaced = True
    return replaced


def _logits_and_grad(network: Folded, x: Images) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        logits = network(x)
        (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    return logits.detach(), gradient


def _is_plain(layer: nn.Conv2d) -> bool:
    zeros = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
    return zeros and layer.groups == 1 and layer.dilation == (1, 1) and layer.weight.device.type == "cpu"


def suits_winograd(layer: nn.Conv2d) -> bool:
    """Whether `WinogradConv` can replace a convolution and pays off."""
    dense = layer.kernel_size == (3, 3) and layer.stride == (1, 1) and layer.padding in ((1, 1), "same")
    fewest, most = sorted((layer.in_channels, layer.out_channels))
    return _is_plain(layer) and dense and fewest >= WINOGRAD_MIN_CHANNELS and most <= WINOGRAD_MAX_CHANNELS


@final
class WinogradConv(nn.Conv2d):
    """A 3x3 convolution by Winograd's algorithm, for a layer that `suits_winograd`.

    A tile of 6x6 inputs gives 4x4 outputs. Input d, filter g and output y of a tile satisfy

        y = A' [(G g G') * (B' d B)] A,

    with 36 products instead of 144; the sum over channels inside the brackets is a matrix product. The
    transformed filters, one for each direction, take eight times the memory of the filter. Rounding errors
    are about ten times those of a plain convolution. Lavin and Gray, 2016, Fast algorithms for convolutional
    neural networks.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        """Use the parameters of a layer, under the same names."""
        super().__init__(layer.in_channels, layer.out_channels, 3, padding=1, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        weight = self.weight.detach()
        self.forward_filters = transform_filters(weight)
        self.backward_filters = transform_filters(weight.flip(2, 3).transpose(0, 1))

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        y = cast(Tensor, _WinogradFunction.apply(input, self.forward_filters, self.backward_filters))
        return y if self.bias is None else y + self.bias[:, None, None]


@final
class _WinogradFunction(torch.autograd.Function):
    """The gradient of a convolution is a convolution with the rotated filter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_filters: Tensor, backward_filters: Tensor) -> Tensor:
        ctx.backward_filters = backward_filters
        return winograd_conv(x, forward_filters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return winograd_conv(gradients[0], ctx.backward_filters), None, None


def transform_filters(weight: Float[Tensor, "o i 3 3"]) -> Filters:
    """G g G' for every filter."""
    o, i = weight.shape[:2]
    flat = _kron_square(G, weight.dtype) @ weight.reshape(o * i, 9).T
    return flat.view(36, o, i).transpose(1, 2).contiguous()


def winograd_conv(x: Images, filters: Filters) -> Float[Tensor, "n o h w"]:
    """Convolve images, padded by one, with transformed filters; pads further to a whole number of tiles."""
    n, c, h, w = x.shape
    o = filters.shape[2]
    num_rows, num_columns = -(-h // 4), -(-w // 4)
    padding = (0, 0, 1, 4 * num_columns - w + 1, 1, 4 * num_rows - h + 1)
    padded = F.pad(x.permute(0, 2, 3, 1), padding)
    image, row, column, channel = padded.stride()
    strides = (row, column, image, 4 * row, 4 * column, channel)
    tiles = padded.as_strided((6, 6, n, num_rows, num_columns, c), strides).reshape(36, -1)
    transformed = (_kron_square(B, x.dtype) @ tiles).view(36, n * num_rows * num_columns, c)
    products = torch.bmm(transformed, filters)
    outputs = (_kron_square(A, x.dtype) @ products.view(36, -1)).view(4, 4, n, num_rows, num_columns, o)
    whole = outputs.permute(2, 3, 0, 4, 1, 5).reshape(n, 4 * num_rows, 4 * num_columns, o)
    return whole[:, :h, :w].permute(0, 3, 1, 2)


@cache
def _kron_square(rows: Matrix, dtype: torch.dtype) -> Tensor:
    """The Kronecker product of a matrix with itself, which transforms rows and columns of a tile at once."""
    matrix = torch.tensor(rows, dtype=torch.float64)
    return torch.kron(matrix, matrix).to(dtype)


def suits_stem(layer: nn.Conv2d) -> bool:
    """Whether `StemConv` can replace a convolution and pays off."""
    return _is_plain(layer) and not isinstance(layer.padding, str) and layer.in_channels <= STEM_MAX_CHANNELS


@final
class StemConv(nn.Conv2d):
    """A convolution of few input channels with a faster gradient, for a layer that `suits_stem`.

    Libraries compute the gradient as a convolution whose output channels are padded to a full vector: an
    image uses 1 or 3 of 16. Here one matrix product gives the contribution of each output to each pixel under
    the filter, and these are added up over the positions of the filter.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        """Use the parameters of a layer, under the same names."""
        channels = (layer.in_channels, layer.out_channels)
        geometry: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
        super().__init__(*channels, **geometry, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        # One row for each input channel and position in the filter.
        rows = self.weight.detach().permute(1, 2, 3, 0)
        self.backward_filters = rows.reshape(-1, layer.out_channels).contiguous()

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        return cast(Tensor, _StemFunction.apply(input, self))


@final
class _StemFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StemConv) -> Tensor:
        ctx.layer, ctx.size = layer, x.shape
        return F.conv2d(x, layer.weight, layer.bias, layer.stride, cast(tuple[int, int], layer.padding))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return stem_input_grad(gradients[0], ctx.layer, ctx.size), None


def stem_input_grad(g: Tensor, layer: StemConv, size: torch.Size) -> Tensor:
    """The gradient with respect to images of shape `size`, given the gradient g of the outputs."""
    (n, o, out_h, out_w), (_, c, h, w) = g.shape, size
    (kernel_h, kernel_w), (stride_h, stride_w) = layer.kernel_size, layer.stride
    top, left = cast(tuple[int, int], layer.padding)
    # One product per image: in one product for all, the position of an image would change its bits.
    flat = g.permute(0, 2, 3, 1).reshape(n, out_h * out_w, o)
    products = torch.bmm(layer.backward_filters.expand(n, -1, -1), flat.transpose(1, 2))
    contributions = products.view(n, c, kernel_h, kernel_w, out_h, out_w)
    # Pixels that no filter covers stay zero; the padding is cut off.
    padded = g.new_zeros(n, c, h + 2 * top, w + 2 * left)
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = slice(i, i + stride_h * (out_h - 1) + 1, stride_h)
            columns = slice(j, j + stride_w * (out_w - 1) + 1, stride_w)
            padded[:, :, rows, columns].add_(contributions[:, :, i, j])
    whole = padded[:, :, top : top + h, left : left + w]
    return whole.contiguous(memory_format=torch.channels_last)


FAST_CONVS: tuple[tuple[Callable[[nn.Conv2d], bool], Callable[[nn.Conv2d], nn.Module]], ...] = (
    (suits_winograd, WinogradConv),
    (suits_stem, StemConv),
)
"""The faster layers, each with the test whether it can replace a convolution."""
