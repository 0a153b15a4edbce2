"""The moves of Square in L2 and L1: add a pattern in one window, with budget taken from another window.

The pattern of side s is positive in the upper half of the window and negative in the lower half (left and
right if transposed). Each half is a pyramid: sum_{j >= r} 1 / (j + 1)^k at Chebyshev distance r from its
centre, where j ends at its edge and k is 2 in L2 and 4 in L1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from allrounder.rng import Rng
from allrounder.threats.norms import L2, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images

L1_MARGIN = 1e-6
"""The share of the radius that is not used in L1, so that rounding cannot move an image out of the ball."""

MIN_LENGTH = 1e-12
"""A lower bound for lengths that are divided by."""


@dataclass(frozen=True, eq=False)
class WindowMove:
    """One move of each example: a window to fill, a window to clear, and the pattern to fill with."""

    side: Int[Tensor, " n"]
    corners: Int[Tensor, "n 4"]
    """Top and left of the window to fill, then of the window to clear."""
    pattern: Int[Tensor, " n"]
    """Twice the index of the side among all sides, plus one if transposed."""
    signs: Float[Tensor, "n c 1 1"]


def move_windows(x: Images, best: Images, threat: Threat, move: WindowMove, sides: tuple[int, ...]) -> Images:
    """The images after one move.

    With d = best - x, each channel of the filled window gets the direction d / |d| + sign * pattern and the
    length l with l^p = |d in both windows|^p + (eps^p - |d|^p) / c, where p = 2 in L2 and 1 in L1: the
    content of both windows and the unused budget. The cleared window becomes zero outside the filled one. The
    result is projected into the threat.
    """
    c = x.shape[1]
    d = best - x
    p = _exponent(threat.norm)
    filled, cleared = window_masks(move.side, move.corners, x)
    either = torch.maximum(filled, cleared)
    size = _abs_power(d, p)
    # In L1 slightly less than the radius, so that rounding alone does not require a projection.
    eps = threat.eps if p == 2 else _l1_radius(threat) * (1 - L1_MARGIN)
    unused = eps**p - size.sum(dim=(1, 2, 3), keepdim=True)
    length = _root(((size * either).sum(dim=(2, 3), keepdim=True) + unused / c).clamp_(min=0), p)
    old_length = _root((size * filled).sum(dim=(2, 3), keepdim=True), p).clamp_(min=MIN_LENGTH)
    new = (filled / old_length).mul_(d).addcmul_(move.signs, _place_patterns(move, sides, x, p))
    # In L1 each channel gets c times its share, as in released code; the projection removes the excess.
    scale = (length if p == 2 else c * length) / _safe_length(new, p, (2, 3))
    return _project_into(threat, x, d.addcmul_(d, either, value=-1).addcmul_(new, scale))


def random_tiles(x: Images, threat: Threat, rng: Rng) -> Images:
    """The start: a grid of patterns with a fifth of the image's side, with a random sign for each channel."""
    n, c, h, w = x.shape
    p = _exponent(threat.norm)
    s = max(min(h, w) // 5, 1)
    num_rows, num_columns = h // s, w // s
    # Differs: released code puts the first pattern at (h - 5 s) // 2, which fails for sizes such as 24. Here
    # the grid is centred, which gives the same place for 28, 32, 64 and 224. ADR 0008.
    top, left = (h - num_rows * s) // 2, (w - num_columns * s) // 2
    u = rng.uniform(torch.empty(n, num_rows, num_columns, c + 1, device=x.device))
    signs = torch.where(u < 0.5, 1, -1)[..., :c, None, None]
    transposed = (u[..., c] < 0.5).long()
    tiles = signs * _pattern_table((s,), p, x.dtype, x.device)[0, transposed][:, :, :, None]
    d = torch.zeros_like(x)
    grid = d[:, :, top : top + num_rows * s, left : left + num_columns * s]
    grid.copy_(tiles.permute(0, 3, 1, 4, 2, 5).reshape(grid.shape))
    return _project_into(threat, x, d)


def window_masks(
    side: Int[Tensor, " n"], corners: Int[Tensor, "n corners"], x: Images
) -> list[Float[Tensor, "n 1 h w"]]:
    """Masks that are 1 in the windows and 0 elsewhere; each two columns of `corners` (top, left) give one."""
    h, w = x.shape[2:]
    offset = torch.arange(max(h, w), device=x.device) - corners[:, :, None]
    within = ((offset >= 0) & (offset < side[:, None, None])).to(x.dtype)
    return [
        within[:, i, None, :h, None] * within[:, i + 1, None, None, :w] for i in range(0, corners.shape[1], 2)
    ]


def _place_patterns(move: WindowMove, sides: tuple[int, ...], x: Images, p: int) -> Float[Tensor, "n 1 h w"]:
    """The pattern of each example in the window to fill, and zero elsewhere."""
    table = _pattern_table(sides, p, x.dtype, x.device)
    h, w = x.shape[2:]
    width = table.shape[-1]
    # Cells beyond an example's side repeat its last one, which writes the same number twice.
    cells = torch.arange(int(move.side.max()), device=x.device).minimum(move.side[:, None] - 1)
    source = move.pattern[:, None] * width**2 + cells * width
    target = (move.corners[:, :1] + cells) * w + move.corners[:, 1:2]
    source, target = (index[:, :, None] + cells[:, None, :] for index in (source, target))
    flat = torch.zeros_like(x[:, 0]).flatten(1)
    return flat.scatter_(1, target.flatten(1), table.take(source).flatten(1)).view(-1, 1, h, w)


@cache
def _pattern_table(
    sides: tuple[int, ...], p: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "phases 2 width width"]:
    """The patterns of all sides, plain and transposed, each padded with zeros to the largest side."""
    width = max(sides)
    table = torch.zeros(len(sides), 2, width, width, dtype=torch.float64)
    for i, s in enumerate(sides):
        upper, lower = pyramid(s // 2, s, p), pyramid(s - s // 2, s, p)
        pattern = torch.cat([upper / _safe_length(upper, p, (0, 1)), -lower / _safe_length(lower, p, (0, 1))])
        pattern /= _safe_length(pattern, p, (0, 1))
        table[i, 0, :s, :s] = pattern
        table[i, 1, :s, :s] = pattern.T
    return table.to(device, dtype)


def pyramid(h: int, w: int, p: int) -> Float[Tensor, "h w"]:
    """One half of a pattern, before scaling."""
    rows, columns = (torch.arange(size).sub(size // 2).abs() for size in (h, w))
    steps = 1 / torch.arange(1, max(h, w) // 2 + 2, dtype=torch.float64) ** (2 if p == 2 else 4)
    return steps.flip(0).cumsum(0).flip(0)[torch.maximum(rows[:, None], columns[None, :])]


def _project_into(threat: Threat, x: Images, d: Images) -> Images:
    """Bring x + d into the threat: L2 scales d to the full budget and clips; L1 takes the closest point."""
    if isinstance(threat.norm, L2):
        return torch.addcmul(x, d, threat.eps / _safe_length(d, 2, (1, 2, 3))).clamp_(0, 1)
    radius = _l1_radius(threat)
    moved = x + d
    projected = moved.clamp(0, 1)
    # Where clipping to the box already gives a point in the ball, it is the closest one.
    outside = threat.norm.length(projected - x) > radius
    if outside.any():
        projected[outside] = threat.norm.project(x[outside], moved[outside], radius)
    return projected


def _l1_radius(threat: Threat) -> float:
    """The radius in L1, less a margin; the rounding error does not shrink for budgets below about 3."""
    return max(threat.eps - L1_MARGIN * max(threat.eps, 3), 0.0)


def _exponent(norm: Norm) -> int:
    return 2 if isinstance(norm, L2) else 1


def _abs_power(d: Tensor, p: int) -> Tensor:
    return d * d if p == 2 else d.abs()


def _root(size: Tensor, p: int) -> Tensor:
    return size.sqrt() if p == 2 else size


def _safe_length(d: Tensor, p: int, dims: tuple[int, ...]) -> Tensor:
    """The length over `dims`, at least MIN_LENGTH, so that it can be divided by."""
    return _root(_abs_power(d, p).sum(dim=dims, keepdim=True), p).clamp_(min=MIN_LENGTH)
