"""3x3 convolutions by Winograd's algorithm F(4x4, 3x3), on a CPU.

A tile of 6x6 inputs gives 4x4 outputs. Input d, filter g and output y of a tile satisfy

    y = A' [(G g G') * (B' d B)] A,

with 36 products instead of 144; the sum over channels inside the brackets is a matrix product. Results
differ from those of a plain convolution by 2e-6 to 5e-6 relatively. Lavin and Gray, 2016, Fast algorithms for
convolutional neural networks.

Tiles are transformed along rows, then along columns, a few images at a time, so that the numbers stay in the
cache of the processor between two operations. The 36 products are in the order of columns, then rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from allrounder.types import Images

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
Taps: TypeAlias = Float[Tensor, "3 3 i o"]
"""A filter by column and row."""


class FilterMemory(ABC):
    """The transformed filters of one direction of a layer."""

    is_stale = True
    """Whether the filters have changed since they were transformed."""

    @abstractmethod
    def convolve(
        self, x: Float[Tensor, "n i h w"], taps: Taps, by: Matrix, bias: Tensor | None = None
    ) -> Float[Tensor, "n o h w"]:
        """Convolve images with taps, and transform these by a matrix before if that was not done."""


@final
class PlainFilters(FilterMemory):
    """Filters for products of matrices, in memory that is kept."""

    def __init__(self) -> None:
        self.filters: Filters | None = None

    @override
    def convolve(
        self, x: Float[Tensor, "n i h w"], taps: Taps, by: Matrix, bias: Tensor | None = None
    ) -> Float[Tensor, "n o h w"]:
        if self.filters is None:
            with torch.inference_mode(False):  # an inference tensor could not be refreshed later
                self.filters = taps.new_empty(36, *taps.shape[2:])
        if self.is_stale:
            transform_taps(taps, by, self.filters)
            self.is_stale = False
        return winograd_conv(x, self.filters, bias)


def transform_taps(taps: Taps, by: Matrix, out: Filters) -> None:
    """G g G' for every filter g, in the order of `_convolve_in_parts`."""
    matrix = matrix_tensor(by, taps.dtype)
    columns = matrix @ taps.reshape(3, -1)
    torch.bmm(matrix.expand(6, 6, 3), columns.view(6, 3, -1), out=out.view(6, 6, -1))


def winograd_conv(x: Images, filters: Filters, bias: Tensor | None = None) -> Float[Tensor, "n o h w"]:
    """Convolve images, padded by one, with transformed filters; pads further to a whole number of tiles."""
    n, _, h, w = x.shape
    part, _ = count_tiles(x.shape)
    y = empty_outputs(x, filters.shape[2])
    pixels, outputs = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    whole = n - n % part
    _convolve_in_parts(pixels[:whole], filters, bias, outputs[:whole], part)
    if whole < n:
        _convolve_in_parts(pixels[whole:], filters, bias, outputs[whole:], n - whole)
    return crop_outputs(y, h, w)


def count_tiles(shape: torch.Size) -> tuple[int, int]:
    """The number of images that are transformed at once, and that of their tiles."""
    n, _, h, w = shape
    tiles = -(-h // 4) * -(-w // 4)
    part = max(1, min(n, -(-TILES_AT_ONCE // tiles)))
    return part, part * tiles


def empty_outputs(x: Images, outputs: int) -> Float[Tensor, "n o h4 w4"]:
    """Memory for the outputs of whole tiles."""
    n, _, h, w = x.shape
    size = (n, outputs, 4 * -(-h // 4), 4 * -(-w // 4))
    return torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)


def crop_outputs(y: Float[Tensor, "n o h4 w4"], h: int, w: int) -> Float[Tensor, "n o h w"]:
    """The outputs without the padding of the last tiles."""
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

    Names of dimensions: k and l are the row and the column in a tile, p and q count the tiles of an image.
    All views are made before the loop, as they would take a noticeable share of its time.
    """
    (n, h, w, c), (_, _, o), (_, high, wide, _) = pixels.shape, filters.shape, y.shape
    p, q = high // 4, wide // 4
    tiles = part * p * q
    a, b = matrix_tensor(A, pixels.dtype), matrix_tensor(B, pixels.dtype)
    padded = pixels.new_zeros(part, high + 2, wide + 2, c)
    inside = padded[:, 1 : h + 1, 1 : w + 1]
    row_products, rows = plan_row_products(padded, b, p)
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


def plan_row_products(
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
def matrix_tensor(rows: Matrix, dtype: torch.dtype) -> Tensor:
    """A matrix of a transform."""
    return torch.tensor(rows, dtype=torch.float64).to(dtype)
