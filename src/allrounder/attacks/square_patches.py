"""How Square moves in L2 and L1: a pattern is added in one window, and paid for with the content of another.

The pattern of side s is a hill in the upper half of the window and a valley in the lower one (or, turned, to
the left and right). Each half is a pyramid: sum_{j >= r} 1 / (j + 1)^(2 or 4, in L2 or L1) at distance r from
its middle, up to its edge, where distance is the larger one of rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from allrounder.rng import Draws
from allrounder.threats.norms import L2, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images

ROUNDING = 1e-6
"""The share of its radius that L1 leaves, so that rounding cannot carry an image out of the ball."""

TINY = 1e-12
"""Lengths below are not divided by."""


@dataclass(frozen=True, eq=False)
class Windows:
    """One move of every example: a window to be filled and one to be emptied, and what to fill it with."""

    side: Int[Tensor, " n"]
    corners: Int[Tensor, "n 4"]
    """Top and left of the one, then of the other."""
    pattern: Int[Tensor, " n"]
    """Twice the place of the side among the possible ones, and one more if turned."""
    signs: Float[Tensor, "n c 1 1"]


def exchange(x: Images, best: Images, threat: Threat, at: Windows, sides: tuple[int, ...]) -> Images:
    """The images after one move.

    With d = best - x, each channel of the filled window gets the direction d / |d| + sign * pattern and the
    length l with l^p = |d in both windows|^p + (eps^p - |d|^p) / c, where p = 2 in L2 and 1 in L1: what the
    windows held, and what was left of the budget. The emptied window becomes zero where the other does not
    cover it, and all is brought back into the threat.
    """
    c, d, p = x.shape[1], best - x, _power(threat.norm)
    filled, emptied = inside(at.side, at.corners, x)
    either, size = torch.maximum(filled, emptied), _sizes(d, p)
    # In L1 a little short of it, so that rounding alone makes no projection necessary.
    eps = threat.eps if p == 2 else _radius(threat) * (1 - ROUNDING)
    left = eps**p - size.sum(dim=(1, 2, 3), keepdim=True)
    length = _root(((size * either).sum(dim=(2, 3), keepdim=True) + left / c).clamp_(min=0), p)
    held = _root((size * filled).sum(dim=(2, 3), keepdim=True), p).clamp_(min=TINY)
    new = (filled / held).mul_(d).addcmul_(at.signs, _placed(at, sides, x, p))
    # In L1 every channel gets c times its share, as in released code; the projection takes the excess back.
    scale = (length if p == 2 else c * length) / _length(new, p, (2, 3))
    return _into(threat, x, d.addcmul_(d, either, value=-1).addcmul_(new, scale))


def tiles(x: Images, threat: Threat, draws: Draws) -> Images:
    """The start: patterns with a fifth of the image's side, as many as fit, and signs for each channel."""
    (n, c, h, w), p = x.shape, _power(threat.norm)
    s = max(min(h, w) // 5, 1)
    down, right = h // s, w // s
    # Differs: released code lays the first one at (h - 5 s) // 2, which fails for sizes such as 24. Here the
    # whole is centred, which is the same place for 28, 32, 64 and 224. ADR 0008.
    top, left = (h - down * s) // 2, (w - right * s) // 2
    u = draws.uniform(torch.empty(n, down, right, c + 1, device=x.device))
    signs, turned = torch.where(u < 0.5, 1, -1)[..., :c, None, None], (u[..., c] < 0.5).long()
    laid = signs * _patterns((s,), p, x.dtype, x.device)[0, turned][:, :, :, None]
    d = torch.zeros_like(x)
    middle = d[:, :, top : top + down * s, left : left + right * s]
    middle.copy_(laid.permute(0, 3, 1, 4, 2, 5).reshape(middle.shape))
    return _into(threat, x, d)


def inside(
    side: Int[Tensor, " n"], corners: Int[Tensor, "n corners"], x: Images
) -> list[Float[Tensor, "n 1 h w"]]:
    """1 in the squares with these tops and lefts, 0 around them; a mask for each two columns of corners."""
    h, w = x.shape[2:]
    away = torch.arange(max(h, w), device=x.device) - corners[:, :, None]
    within = ((away >= 0) & (away < side[:, None, None])).to(x.dtype)
    return [
        within[:, i, None, :h, None] * within[:, i + 1, None, None, :w] for i in range(0, corners.shape[1], 2)
    ]


def _placed(at: Windows, sides: tuple[int, ...], x: Images, p: int) -> Float[Tensor, "n 1 h w"]:
    """The pattern of every example in the window to be filled, and zero around it."""
    table, (h, w) = _patterns(sides, p, x.dtype, x.device), x.shape[2:]
    reach = table.shape[-1]
    # Cells beyond an example's side repeat its last one, which writes the same number twice.
    cells = torch.arange(int(at.side.max()), device=x.device).minimum(at.side[:, None] - 1)
    source = at.pattern[:, None] * reach**2 + cells * reach
    target = (at.corners[:, :1] + cells) * w + at.corners[:, 1:2]
    source, target = (place[:, :, None] + cells[:, None, :] for place in (source, target))
    flat = torch.zeros_like(x[:, 0]).flatten(1)
    return flat.scatter_(1, target.flatten(1), table.take(source).flatten(1)).view(-1, 1, h, w)


@cache
def _patterns(
    sides: tuple[int, ...], p: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "phases 2 reach reach"]:
    """The patterns of these sides, upright and turned, each in the upper left corner of the largest."""
    reach = max(sides)
    table = torch.zeros(len(sides), 2, reach, reach, dtype=torch.float64)
    for i, s in enumerate(sides):
        hill, valley = pyramid(s // 2, s, p), pyramid(s - s // 2, s, p)
        upright = torch.cat([hill / _length(hill, p, (0, 1)), -valley / _length(valley, p, (0, 1))])
        upright /= _length(upright, p, (0, 1))
        table[i, 0, :s, :s], table[i, 1, :s, :s] = upright, upright.T
    return table.to(device, dtype)


def pyramid(h: int, w: int, p: int) -> Float[Tensor, "h w"]:
    """Half of a pattern, not scaled yet."""
    rows, columns = (torch.arange(size).sub(size // 2).abs() for size in (h, w))
    steps = 1 / torch.arange(1, max(h, w) // 2 + 2, dtype=torch.float64) ** (2 if p == 2 else 4)
    return steps.flip(0).cumsum(0).flip(0)[torch.maximum(rows[:, None], columns[None, :])]


def _into(threat: Threat, x: Images, d: Images) -> Images:
    """x + d in the threat: L2 stretches d to the whole budget and clips; L1 takes the closest point."""
    if isinstance(threat.norm, L2):
        return torch.addcmul(x, d, threat.eps / _length(d, 2, (1, 2, 3))).clamp_(0, 1)
    radius, far = _radius(threat), x + d
    near = far.clamp(0, 1)
    # Where the box alone brings d into the ball, that is the closest point, and quicker.
    long = threat.norm.length(near - x) > radius
    if long.any():
        near[long] = threat.norm.project(x[long], far[long], radius)
    return near


def _radius(threat: Threat) -> float:
    """The radius in L1; what rounding adds does not become less below a budget of about 3."""
    return max(threat.eps - ROUNDING * max(threat.eps, 3), 0.0)


def _power(norm: Norm) -> int:
    return 2 if isinstance(norm, L2) else 1


def _sizes(d: Tensor, p: int) -> Tensor:
    return d * d if p == 2 else d.abs()


def _root(size: Tensor, p: int) -> Tensor:
    return size.sqrt() if p == 2 else size


def _length(d: Tensor, p: int, dims: tuple[int, ...]) -> Tensor:
    """The length over some dimensions, but never zero, so that it can be divided by."""
    return _root(_sizes(d, p).sum(dim=dims, keepdim=True), p).clamp_(min=TINY)
