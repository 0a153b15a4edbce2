"""Blurs, enlargements and resampling of a batch of images, (n, h, w, c), in plain numpy.

Each is a sum of shifted images in a fixed order, so an image does not depend on those beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allrounder.data.corruptions.base import Floats, upto

Edge: TypeAlias = Literal["reflect", "symmetric", "black"]
"""What lies beyond an edge: a mirror image without or with the edge pixel twice, or nothing."""


def gaussian(
    x: Floats, sigma: float, truncate: float = 4.0, edge: Literal["edge", "symmetric"] = "edge"
) -> Floats:
    """A Gaussian blur over height and width, cut off after `truncate` sigmas."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    bell = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(radius + 1)]
    total = bell[0] + 2 * sum(bell[1:])
    for axis in (1, 2):
        size, width = x.shape[axis], [(radius, radius) if a == axis else (0, 0) for a in range(x.ndim)]
        padded = np.pad(x, width, mode=edge)

        def shifted(k: int, padded: Floats = padded, axis: int = axis, size: int = size) -> Floats:
            return padded[(slice(None),) * axis + (slice(radius + k, radius + k + size),)]

        blurred = bell[0] / total * shifted(0)
        for k in range(1, radius + 1):
            blurred += bell[k] / total * (shifted(-k) + shifted(k))
        x = blurred
    return x


def correlated(x: Floats, weights: Floats) -> Floats:
    """Every pixel as a weighted sum of its surroundings; edges are mirrored without the edge pixel."""
    (height, width), (h, w) = weights.shape, x.shape[1:3]
    pad = [(0, 0), (height // 2, height // 2), (width // 2, width // 2), (0, 0)]
    padded, total = np.pad(x, pad, mode="reflect"), np.zeros(x.shape)
    for i, j in zip(*np.nonzero(weights), strict=True):
        total += weights[i, j] * padded[:, i : i + h, j : j + w]
    return total


def disk(radius: float, alias: float) -> Floats:
    """An even disk of this radius, its rim softened by a Gaussian of three taps."""
    reach = math.ceil(radius) + 2
    places = np.arange(-reach, reach + 1)
    even = (places[:, None] ** 2 + places[None, :] ** 2 <= radius**2).astype(np.float64)
    side = math.exp(-0.5 / alias**2)
    taps = np.array([side, 1, side]) / (1 + 2 * side)
    return correlated((even / even.sum())[None, ..., None], np.outer(taps, taps))[0, ..., 0]


def streaked(x: Floats, radius: float, sigma: float, angles: Sequence[float]) -> Floats:
    """Every image blurred along a line of its own angle, in degrees, with weights that fall on one side.

    The form of ImageMagick's motion blur, which the published sets use: whole pixels along the line, the
    falling half of a Gaussian over twice the radius, and edges that are repeated.
    """
    n, h, w, _ = x.shape
    reach = 2 * math.ceil(radius) + 1
    bell = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(reach)]
    # By the plain functions, because numpy's may differ in a bit between the body and the end of an array.
    across, down = (
        [[math.ceil(k * along(math.radians(angle)) - 0.5) for angle in angles] for k in range(reach)]
        for along in (math.cos, math.sin)
    )
    each, total = upto(n)[:, None, None], np.zeros(x.shape)
    for k in range(reach):
        rows = np.clip(upto(h) + np.array(down[k])[:, None], 0, h - 1)
        columns = np.clip(upto(w) + np.array(across[k])[:, None], 0, w - 1)
        total += bell[k] / sum(bell) * x[each, rows[:, :, None], columns[:, None, :]]
    return total


def zoomed(x: Floats, factor: float) -> Floats:
    """The middle of every image, enlarged to its size between the pixels' own places."""
    return _enlarged(_enlarged(x, factor).swapaxes(1, 2), factor).swapaxes(1, 2)


def _enlarged(x: Floats, factor: float) -> Floats:
    """The middle rows, enlarged."""
    size = x.shape[1]
    cut = math.ceil(size / factor)
    large, first = round(cut * factor), (size - cut) // 2
    if large == cut:
        return x
    places: Floats = (upto(size) + (large - size) // 2) * ((cut - 1) / (large - 1))
    below = np.minimum(places.astype(np.int64), cut - 2)
    share = (places - below)[:, None, None]
    return x[:, first + below] * (1 - share) + x[:, first + below + 1] * share


def sampled(x: Floats, rows: Floats, columns: Floats, edge: Edge) -> Floats:
    """Every image at these places, (h, w) for all or (n, h, w), linear between the four pixels around."""
    h, w = x.shape[1:3]
    if rows.ndim == 2:
        rows, columns = rows[None], columns[None]
    each = upto(len(x))[:, None, None]
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    low, right = (rows - top)[..., None], (columns - left)[..., None]
    above, below = _folded(top, h, edge), _folded(top + 1, h, edge)
    before, after = _folded(left, w, edge), _folded(left + 1, w, edge)
    upper = x[each, above, before] * (1 - right) + x[each, above, after] * right
    lower = x[each, below, before] * (1 - right) + x[each, below, after] * right
    mixed = upper * (1 - low) + lower * low
    if edge == "black":
        inside = (rows >= -0.5) & (rows < h - 0.5) & (columns >= -0.5) & (columns < w - 0.5)
        mixed = mixed * inside[..., None]
    return mixed


def _folded(places: NDArray[np.int64], size: int, edge: Edge) -> NDArray[np.int64]:
    """Places beyond an edge, brought back into the image."""
    if edge == "black":
        return np.clip(places, 0, size - 1)
    period = 2 * size if edge == "symmetric" else 2 * size - 2
    around: NDArray[Any] = places % period
    return np.where(around < size, around, period - around - (edge == "symmetric"))
