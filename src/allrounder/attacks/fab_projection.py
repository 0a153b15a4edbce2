"""The shortest way from an image to a plane without leaving the box [0, 1], per example and exact.

On the plane c + w.d = 0. Every coordinate moves towards the plane or not at all, by m_i >= 0 up to the room
r_i that the box leaves it, and together they have to gain sum_i |w_i| m_i = |c|. The shortest d has
    Linf  m_i = min(level, r_i)
    L2    m_i = min(level * |w_i|, r_i)
    L1    m_i = r_i where |w_i| is largest, part of r_i for the next one, and 0 for all others.
Where the box ends before the plane is reached, every coordinate uses all of its room. Croce and Hein, 2020,
Minimally distorted adversarial examples with a fast adaptive boundary attack.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from allrounder.threats.norms import L1, L2, Linf, Norm
from allrounder.types import Images, PerExample

Rows = Float[Tensor, "n d"]
Column = Float[Tensor, "n 1"]

FEW = 32
"""How many coordinates an L1 displacement tries first; most need no more, and sorting all takes 15 times as
long."""


def displace(x: Images, w: Images, c: PerExample, norm: Norm) -> Images:
    """The displacement d of minimal norm with c + w.d = 0 and x + d in the box; all the room if none has.

    Only the ratio of w and c matters, so gradients may be as small or as large as they like. Zero where w or
    c is zero, NaN where w is.
    """
    scale = w.abs().amax(dim=(1, 2, 3)).clamp(min=_tiny(w))
    size = (w.abs() / scale[:, None, None, None]).flatten(1)
    need = (c.abs() / scale)[:, None]
    towards = -c.sign()[:, None] * w.flatten(1).sign()
    # Without torch.where, which takes ten times as long: up to 1 or down to 0, and no room where w is zero.
    room = ((towards.clamp(min=0) - x.flatten(1)) * towards).clamp(min=0)
    match norm:
        case Linf():
            amount = torch.minimum(_level(size, room, need), room)
        case L2():
            kink = room / size.clamp(min=_tiny(w))
            amount = torch.minimum(size * torch.minimum(_level(size * size, kink, need), kink), room)
        case L1():
            amount = _fill(size, room, need, FEW)
        case _:
            raise AssertionError(f"displacements are known in Linf, L2 and L1, not in {norm}")
    return (amount * towards).view_as(x)


def gap(w: Images, c: PerExample, norm: Norm) -> PerExample:
    """How far the plane c + w.d = 0 is where no box is in the way: |c| / ||w||, in the dual norm."""
    match norm:
        case Linf():
            length = L1().length(w)
        case L1():
            length = Linf().length(w)
        case _:
            length = norm.length(w)
    return c.abs() / length.clamp(min=_tiny(w))


def _level(weight: Rows, kink: Rows, need: Column) -> Column:
    """The level with sum_i weight_i * min(level, kink_i) = need; infinite if no level is enough.

    The sum is concave and linear between kinks, so Newton's method climbs to the level from below and gets
    there after a few steps. A row that has arrived stays, whatever its neighbours still do.
    """
    gain, work = torch.empty_like(weight), torch.empty_like(weight)
    level = need / weight.sum(dim=1, keepdim=True).clamp(min=_tiny(weight))
    close = 8 * torch.finfo(weight.dtype).eps * need
    while True:
        torch.minimum(kink, level, out=gain)
        torch.gt(kink, level, out=work)  # as numbers, which multiply six times as fast as flags
        missing = need - gain.mul_(weight).sum(dim=1, keepdim=True)
        slope = work.mul_(weight).sum(dim=1, keepdim=True)
        higher = torch.where(missing > close, level + missing / slope, level)
        if not bool((higher > level).any()):
            return level
        level = higher


def _fill(size: Rows, room: Rows, need: Column, few: int) -> Rows:
    """Use up the room in order of decreasing size until the need is met, trying a few coordinates first."""
    largest, at = size.topk(min(few, size.shape[1]), dim=1)
    free = room.gather(1, at)
    gain = largest * free
    before = gain.cumsum(dim=1) - gain
    amount = torch.minimum((need - before).clamp(min=0) / largest.clamp(min=_tiny(size)), free)
    filled = torch.zeros_like(size).scatter_(1, at, amount)
    short = (gain.sum(dim=1, keepdim=True) < need).squeeze(1).nonzero().squeeze(1)
    if len(short) and few < size.shape[1]:
        filled[short] = _fill(size[short], room[short], need[short], 8 * few)
    return filled


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
