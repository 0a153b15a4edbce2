"""The shortest displacement from an image to a plane inside the box [0, 1], exact and per example.

The plane is c + w.d = 0. Coordinate i moves towards the plane by m_i, with 0 <= m_i <= r_i, where r_i is the
distance to the bound of the box, and sum_i |w_i| m_i = |c|. The shortest d has
    Linf  m_i = min(level, r_i)
    L2    m_i = min(level * |w_i|, r_i)
    L1    m_i = r_i for the largest |w_i|, a part of r_i for the next one, and 0 for all others.
If the plane does not intersect the box, m_i = r_i for all i. Croce and Hein, 2020, Minimally distorted
adversarial examples with a fast adaptive boundary attack.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from allrounder.threats.norms import L1, L2, Linf, Norm
from allrounder.types import Images, PerExample

Rows = Float[Tensor, "n d"]
Column = Float[Tensor, "n 1"]

INITIAL_TOPK = 32
"""The number of coordinates that an L1 displacement tries first. Most need no more, and sorting all
coordinates takes 15 times as long."""


def displace(x: Images, w: Images, c: PerExample, norm: Norm) -> Images:
    """The displacement d of minimal norm with c + w.d = 0 and x + d in the box; m_i = r_i if there is none.

    Only the ratio of w and c matters, so gradients may be very small or very large. The result is zero where
    w or c is zero, and NaN where w is NaN.
    """
    scale = w.abs().amax(dim=(1, 2, 3)).clamp(min=_tiny(w))
    size = (w.abs() / scale[:, None, None, None]).flatten(1)
    need = (c.abs() / scale)[:, None]
    towards = -c.sign()[:, None] * w.flatten(1).sign()
    # The bound is 1 or 0, and the room is zero where w is zero. torch.where would take ten times as long.
    room = ((towards.clamp(min=0) - x.flatten(1)) * towards).clamp(min=0)
    match norm:
        case Linf():
            amount = torch.minimum(_solve_level(size, room, need), room)
        case L2():
            kink = room / size.clamp(min=_tiny(w))
            amount = torch.minimum(size * torch.minimum(_solve_level(size * size, kink, need), kink), room)
        case L1():
            amount = _fill_largest(size, room, need, INITIAL_TOPK)
        case _:
            raise AssertionError(f"displacements are implemented for Linf, L2 and L1, not for {norm}")
    return (amount * towards).view_as(x)


def plane_distance(w: Images, c: PerExample, norm: Norm) -> PerExample:
    """The distance to the plane c + w.d = 0, ignoring the box: |c| / ||w||, in the dual norm."""
    match norm:
        case Linf():
            length = L1().length(w)
        case L1():
            length = Linf().length(w)
        case _:
            length = norm.length(w)
    return c.abs() / length.clamp(min=_tiny(w))


def _solve_level(weight: Rows, kink: Rows, need: Column) -> Column:
    """The level with sum_i weight_i * min(level, kink_i) = need; infinite if no level is enough.

    The sum is concave and piecewise linear, so Newton's method converges from below in a few steps. A row
    that has converged does not change while others continue.
    """
    gain, work = torch.empty_like(weight), torch.empty_like(weight)
    level = need / weight.sum(dim=1, keepdim=True).clamp(min=_tiny(weight))
    tolerance = 8 * torch.finfo(weight.dtype).eps * need
    while True:
        torch.minimum(kink, level, out=gain)
        torch.gt(kink, level, out=work)  # as floats, which multiply six times as fast as booleans
        missing = need - gain.mul_(weight).sum(dim=1, keepdim=True)
        slope = work.mul_(weight).sum(dim=1, keepdim=True)
        higher = torch.where(missing > tolerance, level + missing / slope, level)
        if not bool((higher > level).any()):
            return level
        level = higher


def _fill_largest(size: Rows, room: Rows, need: Column, k: int) -> Rows:
    """Use the room in order of descending size until the need is met; sorts only k coordinates at first."""
    largest, index = size.topk(min(k, size.shape[1]), dim=1)
    top_room = room.gather(1, index)
    gain = largest * top_room
    before = gain.cumsum(dim=1) - gain
    amount = torch.minimum((need - before).clamp(min=0) / largest.clamp(min=_tiny(size)), top_room)
    filled = torch.zeros_like(size).scatter_(1, index, amount)
    unmet = (gain.sum(dim=1, keepdim=True) < need).squeeze(1).nonzero().squeeze(1)
    if len(unmet) and k < size.shape[1]:
        filled[unmet] = _fill_largest(size[unmet], room[unmet], need[unmet], 8 * k)
    return filled


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
