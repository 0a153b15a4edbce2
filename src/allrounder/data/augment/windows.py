"""Random rectangles in images, as masks."""

from __future__ import annotations

import torch
from torch import Tensor


def window_mask(h: int, w: int, centre: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """Return which pixels of each image lie in its rectangle, (n, h, w), clipped to the image.

    `centre` holds two uniform numbers per image that choose the centre pixel. A rectangle with an even side
    has its larger half before the centre.
    """
    rows = _interval_mask(h, centre[:, 0], heights)
    columns = _interval_mask(w, centre[:, 1], widths)
    return rows[:, :, None] & columns[:, None, :]


def _interval_mask(size: int, centre: Tensor, length: Tensor) -> Tensor:
    """Return which positions of a side lie in each interval, (n, size)."""
    first = ((centre * size).long() - length // 2)[:, None]
    position = torch.arange(size)
    return (position >= first) & (position < first + length[:, None])
