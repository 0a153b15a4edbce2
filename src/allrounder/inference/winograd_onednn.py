"""Winograd convolutions whose products run in oneDNN, for processors on which MKL does not use AVX512.

MKL uses AVX512 only on processors of Intel; on those of AMD, oneDNN is more than twice as fast. It has no
public matrix product, but a convolution with 36 groups and a 1x1 filter is 36 products:

    products[tile, group] = tiles[tile, group] @ filters[group].

So here the 36 numbers of a tile are next to each other, unlike in winograd.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from allrounder.inference.winograd import (
    BIAS_PRODUCT,
    A,
    B,
    FilterMemory,
    Matrix,
    Taps,
    count_tiles,
    crop_outputs,
    empty_outputs,
    matrix_tensor,
    plan_row_products,
    transform_taps,
)
from allrounder.types import Images

CPU_INFO = Path("/proc/cpuinfo")
FEWEST_TILES_AT_ONCE = 32
"""With fewer tiles, a product takes more time for its filters than for the tiles."""
onednn = cast(Any, torch.ops.mkldnn)
GEOMETRY: Any = ([0, 0], [1, 1], [1, 1], 36)
"""Padding, stride, dilation and groups of the convolution that stands for 36 products."""
NO_ACTIVATION: Any = ("none", [], "")
"""No activation after a convolution, its parameters and its algorithm."""


@cache
def is_onednn_faster() -> bool:
    """Whether products in oneDNN are faster than in MKL on this machine."""
    try:
        is_amd = b"AuthenticAMD" in CPU_INFO.read_bytes()
    except OSError:  # it does not exist, or may not be read
        return False
    return is_amd and torch.backends.cpu.get_cpu_capability() == "AVX512" and has_access()


def has_access() -> bool:
    """Whether this version of torch gives access to the operations of oneDNN, which are not public."""
    names = ("_reorder_convolution_weight", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(onednn, name) for name in names)


@final
class PackedFilters(FilterMemory):
    """Filters in the memory layout of oneDNN, which depends on the number of tiles. A copy has none at first,
    because tensors in this layout cannot be copied."""

    def __init__(self) -> None:
        self.packed: Tensor | None = None
        self.tiles = 0

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"packed": None, "tiles": 0}

    @override
    def convolve(
        self, x: Float[Tensor, "n i h w"], taps: Taps, by: Matrix, bias: Tensor | None = None
    ) -> Float[Tensor, "n o h w"]:
        _, tiles = count_packed_tiles(x.shape)
        if self.packed is None or self.is_stale or tiles != self.tiles:
            self.packed = None  # so that its memory can be used again
            self.packed, self.tiles, self.is_stale = pack_taps(taps, by, tiles), tiles, False
        return packed_conv(x, self.packed, taps.shape[3], bias)


def count_packed_tiles(shape: torch.Size) -> tuple[int, int]:
    """The number of images that are transformed at once, and that of their tiles. Small batches are filled up
    to a power of two, so that batches of slightly different sizes use the same packed filters.

    If smaller parts leave less to fill up, these are used for the whole batch: with parts of two sizes, an
    image could get other bits at another position, and two sets of packed filters would be needed.
    """
    n = shape[0]
    part, tiles = count_tiles(torch.Size((1 << max(n - 1, 0).bit_length(), *shape[1:])))
    tiles_of_one = tiles // part
    smaller = min(part, max(1, FEWEST_TILES_AT_ONCE // tiles_of_one))
    if -(-n // smaller) * smaller < -(-n // part) * part:
        part = smaller
    return part, part * tiles_of_one


def pack_taps(taps: Taps, by: Matrix, tiles: int) -> Tensor:
    """Transform taps, and pack the filters for products with `tiles` tiles at once."""
    _, _, inputs, outputs = taps.shape
    filters = taps.new_empty(36, outputs, inputs)
    transform_taps(taps.transpose(2, 3), by, filters)
    shape = [1, 36 * inputs, tiles, 1]
    return onednn._reorder_convolution_weight(filters.view(-1, inputs, 1, 1), *GEOMETRY, shape)


def packed_conv(
    x: Images, packed: Tensor, num_outputs: int, bias: Tensor | None = None
) -> Float[Tensor, "n o h w"]:
    """Convolve images, padded by one, with packed filters; pads further to a whole number of tiles.

    See `_convolve_in_parts` in winograd.py. If the last part has fewer images, others fill it, so that all
    products have the shape that the filters are packed for.
    """
    (n, c, h, w), o = x.shape, num_outputs
    part, tiles = count_packed_tiles(x.shape)
    y = empty_outputs(x, o)
    pixels, outputs = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    p, q = y.shape[2] // 4, y.shape[3] // 4
    a, b = matrix_tensor(A, x.dtype), matrix_tensor(B, x.dtype)
    padded = x.new_zeros(part, 4 * p + 2, 4 * q + 2, c)
    inside = padded[:, 1 : h + 1, 1 : w + 1]
    row_products, rows = plan_row_products(padded, b, p)
    image, i, k, column, channel = rows.stride()
    # Neighbouring tiles overlap by two pixels.
    in_tiles = rows.as_strided((part, p, q, 6, 6, c), (image, i, 4 * column, column, k, channel))
    gathered, d = x.new_empty(part, p, q, 6, 6, c), x.new_empty(tiles, 6, 6 * c)
    d_rows, d_channels = gathered.view(tiles, 6, 6 * c), d.view(1, 1, tiles, 36 * c).permute(0, 3, 2, 1)
    half, result = x.new_empty(tiles, 4, 6 * o), x.new_empty(4 * tiles, 4, o)
    half_rows = half.view(4 * tiles, 6, o)
    in_order = result.view(part, p, q, 4, 4, o).permute(0, 1, 4, 2, 3, 5)
    b_for_each, a_for_each, a_for_half = (
        b.expand(tiles, 6, 6),
        a.expand(tiles, 4, 6),
        a.expand(4 * tiles, 4, 6),
    )
    for begin in range(0, n, part):
        count = min(part, n - begin)
        inside[:count].copy_(pixels[begin : begin + count])
        for matrices, images, out in row_products:
            torch.bmm(matrices, images, out=out)
        gathered.copy_(in_tiles)
        torch.bmm(b_for_each, d_rows, out=d)
        products = onednn._convolution_pointwise(d_channels, packed, None, *GEOMETRY, *NO_ACTIVATION)
        products = products.permute(0, 2, 3, 1).view(tiles, 36, o)
        if bias is not None:
            products[:, BIAS_PRODUCT].add_(bias)
        torch.bmm(a_for_each, products.view(tiles, 6, 6 * o), out=half)
        torch.bmm(a_for_half, half_rows, out=result)
        outputs[begin : begin + count].view(count, p, 4, q, 4, o).copy_(in_order[:count])
    return crop_outputs(y, h, w)
