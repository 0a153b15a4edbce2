"""3x3 convolutions by Winograd's algorithm F(4x4, 3x3), on a CPU.

A tile of 6x6 inputs gives 4x4 outputs. Input d, filter g and output y of a tile satisfy

    y = A' [(G g G') * (B' d B)] A,

with 36 products instead of 144; the sum over channels inside the brackets is a matrix product. Rounding
errors are about ten times those of a plain convolution. Lavin and Gray, 2016, Fast algorithms for
convolutional neural networks.

Tiles are transformed along rows, then along columns, a few images at a time, so that the numbers stay in the
cache of the processor between two operations. The 36 products are in the order of columns, then rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from allrounder.models.layers import TensorOrProxy
from allrounder.types import Images

MIN_CHANNELS, MAX_CHANNELS = 64, 640
"""With fewer channels plain convolutions are faster; with more, the filters need too much memory."""
PRODUCT_COST, TRANSFORM_COST, MAX_COST = 3, 130, 7.2
"""The cost per pixel of the products (per pair of channels) and of the transforms (per channel), relative to
9 for a plain convolution, and the highest cost that pays off. From measurements on an AMD EPYC (AVX2)."""
MIN_WORK = 2**20
"""Fewest pixels times pairs of channels of an image; with fewer, the overhead of many operations counts."""
TILES_AT_ONCE = 128
"""The tiles that are transformed at once: enough for an efficient product, few enough for the cache."""
B = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0),
     (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1))  # fmt: skip
G = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
     (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
ROTATED_G = tuple(row[::-1] for row in G)
"""Transforms filters that are rotated by 180 degrees. It is no permutation of the rows of G: the points 2 and
-2 become 1/2 and -1/2."""
BIAS_PRODUCT = 7
"""A number added to this one of the 36 products is added to every output of a tile."""

Matrix: TypeAlias = tuple[tuple[float | int, ...], ...]
Filters: TypeAlias = Float[Tensor, "36 i o"]


def suits_winograd(layer: nn.Conv2d) -> bool:
    """Whether `WinogradConv` can replace a convolution and may pay off."""
    dense = layer.kernel_size == (3, 3) and layer.stride == (1, 1) and layer.padding in ((1, 1), "same")
    fewest, most = sorted((layer.in_channels, layer.out_channels))
    return is_plain(layer) and dense and fewest >= MIN_CHANNELS and most <= MAX_CHANNELS


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a layer is a convolution on a CPU without groups, dilation or unusual padding."""
    zeros = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
    return zeros and layer.groups == 1 and layer.dilation == (1, 1) and layer.weight.device.type == "cpu"


def pays_off(height: int, width: int, inputs: int, outputs: int) -> bool:
    """Whether Winograd's algorithm is faster for images of a size. It depends on nothing else, so that a run
    computes the same way wherever it continues."""
    tiles = -(-height // 4) * -(-width // 4)
    cost = PRODUCT_COST + TRANSFORM_COST * (1 / inputs + 1 / outputs)
    is_cheaper = 16 * tiles * cost <= MAX_COST * height * width
    return is_cheaper and height * width * inputs * outputs >= MIN_WORK


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
        self.filters: tuple[Tensor, Tensor] | None = None
        self.is_stale = True

    def refresh_(self) -> None:
        """Call this after a change of the weight; the filters are transformed when they are needed."""
        self.is_stale = True

    def transformed_filters(self) -> tuple[Tensor, Tensor]:
        """The filters of the forward and the backward pass; a later call writes to the same memory."""
        weight = self.weight.detach()
        if self.filters is None:
            i, o = self.in_channels, self.out_channels
            self.filters = weight.new_empty(36, i, o), weight.new_empty(36, o, i)
        if self.is_stale:
            forward, backward = self.filters
            _transform_taps(weight.permute(3, 2, 1, 0), G, forward)
            _transform_taps(weight.permute(3, 2, 0, 1), ROTATED_G, backward)
            self.is_stale = False
        return self.filters

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        if not pays_off(input.shape[2], input.shape[3], self.in_channels, self.out_channels):
            return F.conv2d(input, self.weight, self.bias, padding=1)
        return cast(Tensor, _WinogradFunction.apply(input, *self.transformed_filters(), self.bias))


@final
class _WinogradFunction(torch.autograd.Function):
    """The gradient of a convolution is a convolution with the rotated filter."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward_filters: Tensor, backward_filters: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.backward_filters = backward_filters
        return winograd_conv(x, forward_filters, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return winograd_conv(gradients[0], ctx.backward_filters), None, None, None


def transform_filters(weight: Float[Tensor, "o i 3 3"]) -> Filters:
    """G g G' for every filter."""
    o, i = weight.shape[:2]
    filters = weight.new_empty(36, i, o)
    _transform_taps(weight.permute(3, 2, 1, 0), G, filters)
    return filters


def _transform_taps(taps: Float[Tensor, "3 3 i o"], by: Matrix, out: Filters) -> None:
    """Transform taps, given by column and row, into filters in the order of `_convolve_in_parts`."""
    matrix = _tensor(by, taps.dtype)
    columns = matrix @ taps.reshape(3, -1)
    torch.bmm(matrix.expand(6, 6, 3), columns.view(6, 3, -1), out=out.view(6, 6, -1))


def winograd_conv(x: Images, filters: Filters, bias: Tensor | None = None) -> Float[Tensor, "n o h w"]:
    """Convolve images, padded by one, with transformed filters; pads further to a whole number of tiles."""
    n, _, h, w = x.shape
    num_rows, num_columns = -(-h // 4), -(-w // 4)
    part = max(1, min(n, -(-TILES_AT_ONCE // (num_rows * num_columns))))
    size = (n, filters.shape[2], 4 * num_rows, 4 * num_columns)
    y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    pixels, outputs = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    whole = n - n % part
    _convolve_in_parts(pixels[:whole], filters, bias, outputs[:whole], part)
    if whole < n:
        _convolve_in_parts(pixels[whole:], filters, bias, outputs[whole:], n - whole)
    if (h, w) == y.shape[2:]:
        return y  # not a view, which in-place operations after a custom function do not accept
    return y[:, :, :h, :w].contiguous(memory_format=torch.channels_last)


def _convolve_in_parts(
    pixels: Float[Tensor, "n h w c"],
    filters: Filters,
    bias: Tensor | None,
    y: Float[Tensor, "n h4 w4 o"],
    part: int,
) -> None:
    """Write the convolution of n images, a multiple of `part`, into y; `part` images at once.

    Names of dimensions: k and l are the row and the column in a tile, p and q count the tiles of an image. All
    views are made before the loop, as they would take a noticeable share of its time.
    """
    (n, h, w, c), (_, _, o), (_, high, wide, _) = pixels.shape, filters.shape, y.shape
    p, q = high // 4, wide // 4
    tiles = part * p * q
    a, b = _tensor(A, pixels.dtype), _tensor(B, pixels.dtype)
    padded = pixels.new_zeros(part, high + 2, wide + 2, c)
    inside = padded[:, 1 : h + 1, 1 : w + 1]
    row_products, rows = _plan_row_products(padded, b, p)
    image, i, k, column, channel = rows.stride()
    # Neighbouring tiles overlap by two pixels.
    in_tiles = rows.as_strided((6, 6, part, p, q, c), (column, k, image, i, 4 * column, channel))
    d = pixels.new_empty(2, 6, 6, part, p, q, c)
    gathered, d_rows, d_columns = d[0], d[0].view(6, -1), d[1].view(6, -1)
    d_tiles = d[1].view(36, tiles, c)
    products = pixels.new_empty(36, tiles, o)
    product_rows, biased = products.view(6, -1), products[BIAS_PRODUCT]
    half = pixels.new_empty(4, 6 * tiles * o)
    half_rows, a_for_each = half.view(4, 6, -1), a.expand(4, 4, 6)
    outputs = pixels.new_empty(4, 4, tiles * o)
    in_order = outputs.view(4, 4, part, p, q, o).permute(2, 3, 1, 4, 0, 5)
    for begin in range(0, n, part):
        inside.copy_(pixels[begin : begin + part])
        for matrices, images, out in row_products:
            torch.bmm(matrices, images, out=out)
        gathered.copy_(in_tiles)
        torch.mm(b, d_rows, out=d_columns)
        torch.bmm(d_tiles, filters, out=products)
        if bias is not None:
            biased.add_(bias)
        torch.mm(a, product_rows, out=half)
        torch.bmm(a_for_each, half_rows, out=outputs)
        y[begin : begin + part].view(part, p, 4, q, 4, o).copy_(in_order)


def _plan_row_products(
    padded: Float[Tensor, "part h2 w2 c"], b: Tensor, p: int
) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Float[Tensor, "part p 6 w2 c"]]:
    """The arguments of the products B' d that transform the tiles along one axis, and their result.

    A product reads the six rows of each row of tiles where they are; neighbours overlap by two. There is one
    product for all rows of tiles of an image, or one for all images and the same row of tiles: the fewer.
    """
    part, _, wide, c = padded.shape
    image, row, _, _ = padded.stride()
    outer, inner = ((part, image), (p, 4 * row)) if part <= p else ((p, 4 * row), (part, image))
    out = padded.new_empty(outer[0], inner[0], 6, wide, c)
    products = [
        (
            b.expand(inner[0], 6, 6),
            padded.as_strided((inner[0], 6, wide * c), (inner[1], row, 1), number * outer[1]),
            out[number].view(inner[0], 6, wide * c),
        )
        for number in range(outer[0])
    ]
    return products, out if part <= p else out.transpose(0, 1)


@cache
def _tensor(rows: Matrix, dtype: torch.dtype) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).to(dtype)
