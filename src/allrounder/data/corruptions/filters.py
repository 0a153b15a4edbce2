"""Blurs, zooms and resampling of a batch of images, (n, h, w, c), in plain numpy.

Own filters rather than scipy's: scipy is not a core dependency, and every filter here sums shifted images in
a fixed order, so the result for an image does not depend on the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allrounder.data.corruptions.base import FloatArray, arange

EdgeMode: TypeAlias = Literal["reflect", "symmetric", "black"]
"""Values beyond the edge: mirrored without repeating the edge pixel, mirrored with it repeated, or zero."""


def gaussian_filter(
    x: FloatArray, sigma: float, truncate: float = 4.0, edge: Literal["edge", "symmetric"] = "edge"
) -> FloatArray:
    """Blur height and width with a Gaussian that is cut off after `truncate` standard deviations."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    for _ in ("rows", "columns"):
        h = x.shape[1]
        padded = np.pad(x, [(0, 0), (radius, radius), *[(0, 0)] * (x.ndim - 2)], mode=edge)
        blurred = weights[0] / total * padded[:, radius : radius + h]
        for k in range(1, radius + 1):
            neighbours = padded[:, radius - k : radius - k + h] + padded[:, radius + k : radius + k + h]
            blurred += weights[k] / total * neighbours
        x = blurred.swapaxes(1, 2)
    return x


def correlate(x: FloatArray, kernel: FloatArray) -> FloatArray:
    """Replace every pixel by the kernel-weighted sum of its neighbourhood; edges use "reflect" padding."""
    height, width = kernel.shape
    h, w = x.shape[1:3]
    pad_width = [(0, 0), (height // 2, height // 2), (width // 2, width // 2), (0, 0)]
    padded = np.pad(x, pad_width, mode="reflect")
    total = np.zeros(x.shape)
    for i, j in zip(*np.nonzero(kernel), strict=True):
        total += kernel[i, j] * padded[:, i : i + h, j : j + w]
    return total


def disk(radius: float, alias: float) -> FloatArray:
    """Return the kernel of a uniform disk, smoothed by a Gaussian of three taps with deviation `alias`."""
    reach = math.ceil(radius) + 2
    offsets = np.arange(-reach, reach + 1)
    uniform = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).astype(np.float64)
    side = math.exp(-0.5 / alias**2)
    taps = np.array([side, 1, side]) / (1 + 2 * side)
    return correlate((uniform / uniform.sum())[None, ..., None], np.outer(taps, taps))[0, ..., 0]


def motion_filter(x: FloatArray, radius: float, sigma: float, angles: Sequence[float]) -> FloatArray:
    """Blur every image along a line at its own angle in degrees, as ImageMagick does for the published sets:
    whole pixels along the line, one-sided Gaussian weights over twice the radius, repeated edge pixels."""
    n, h, w, _ = x.shape
    reach = 2 * math.ceil(radius) + 1
    weights = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(reach)]
    # Python's sin and cos: numpy's may differ in the last bit between the body and the end of an array.
    right, down = (
        [[math.ceil(k * component(math.radians(angle)) - 0.5) for angle in angles] for k in range(reach)]
        for component in (math.cos, math.sin)
    )
    image = arange(n)[:, None, None]
    total = np.zeros(x.shape)
    for k in range(reach):
        rows = np.clip(arange(h) + np.array(down[k])[:, None], 0, h - 1)
        columns = np.clip(arange(w) + np.array(right[k])[:, None], 0, w - 1)
        total += weights[k] / sum(weights) * x[image, rows[:, :, None], columns[:, None, :]]
    return total


def clipped_zoom(x: FloatArray, factor: float) -> FloatArray:
    """Enlarge the centre of every image to the size of the image, with linear interpolation."""
    return _zoom_rows(_zoom_rows(x, factor).swapaxes(1, 2), factor).swapaxes(1, 2)


def _zoom_rows(x: FloatArray, factor: float) -> FloatArray:
    """Enlarge the central rows."""
    size = x.shape[1]
    cropped = math.ceil(size / factor)
    enlarged = round(cropped * factor)
    first = (size - cropped) // 2
    if enlarged == cropped:
        return x
    positions: FloatArray = (arange(size) + (enlarged - size) // 2) * ((cropped - 1) / (enlarged - 1))
    low = np.minimum(positions.astype(np.int64), cropped - 2)
    weight = (positions - low)[:, None, None]
    return x[:, first + low] * (1 - weight) + x[:, first + low + 1] * weight


def sample_bilinear(x: FloatArray, rows: FloatArray, columns: FloatArray, edge: EdgeMode) -> FloatArray:
    """Sample every image at the given coordinates, (h, w) for all images or (n, h, w), bilinearly."""
    h, w = x.shape[1:3]
    if rows.ndim == 2:
        rows, columns = rows[None], columns[None]
    image = arange(len(x))[:, None, None]
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    lower_weight, right_weight = (rows - top)[..., None], (columns - left)[..., None]
    above, below = _clamp_or_reflect(top, h, edge), _clamp_or_reflect(top + 1, h, edge)
    before, after = _clamp_or_reflect(left, w, edge), _clamp_or_reflect(left + 1, w, edge)
    upper = x[image, above, before] * (1 - right_weight) + x[image, above, after] * right_weight
    lower = x[image, below, before] * (1 - right_weight) + x[image, below, after] * right_weight
    sampled = upper * (1 - lower_weight) + lower * lower_weight
    if edge == "black":
        inside = (rows >= -0.5) & (rows < h - 0.5) & (columns >= -0.5) & (columns < w - 0.5)
        sampled = sampled * inside[..., None]
    return sampled


def _clamp_or_reflect(index: NDArray[np.int64], size: int, edge: EdgeMode) -> NDArray[np.int64]:
    """Map indices beyond an edge back into the image: clamped for "black", else mirrored."""
    if edge == "black":
        return np.clip(index, 0, size - 1)
    period = 2 * size if edge == "symmetric" else 2 * size - 2
    wrapped: NDArray[Any] = index % period
    return np.where(wrapped < size, wrapped, period - wrapped - (edge == "symmetric"))
