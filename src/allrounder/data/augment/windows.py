"""Rectangles inside images."""

from __future__ import annotations

import torch
from torch import Tensor


def inside(height: int, width: int, centre: Tensor, tall: Tensor, wide: Tensor) -> Tensor:
    """Which pixels of each image lie in its rectangle, (n, h, w); what lies outside of the image is lost.

    The centre is a pixel, drawn from two uniform numbers per image; of an even side the larger half comes
    before it.
    """
    rows, columns = (
        _along(size, centre[:, side], length)
        for side, (size, length) in enumerate(((height, tall), (width, wide)))
    )
    return rows[:, :, None] & columns[:, None, :]


def _along(size: int, centre: Tensor, length: Tensor) -> Tensor:
    first = ((centre * size).long() - length // 2)[:, None]
    place = torch.arange(size)
    return (place >= first) & (place < first + length[:, None])
