"""Slow reference of the masks of pixel-reweighted adversarial training: one image, with NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NODES = {
    "red": ([0, 0.35, 0.66, 0.89, 1], [0, 0, 1, 1, 0.5]),
    "green": ([0, 0.125, 0.375, 0.64, 0.91, 1], [0, 0, 1, 1, 0, 0]),
    "blue": ([0, 0.11, 0.34, 0.65, 1], [0.5, 1, 1, 0, 0]),
}


def colours(values: Array) -> Array:
    """The colour map jet as a table of 256 rows, looked up; (h, w) to (h, w, 3)."""
    table = np.stack([np.interp(np.linspace(0, 1, 256), *nodes) for nodes in NODES.values()], axis=1)
    rows = np.clip(np.floor(values * 256), 0, 255).astype(int)
    return table[rows]


def weights(cam: Array) -> Array:
    """max((v - mean) / std, 1) of the colours of the squared map, (h, w, 3)."""
    v = colours(cam**2)
    return np.maximum((v - v.mean()) / v.std(), 1)


def budgets(cam: Array, high: float, low: float) -> Array:
    """The budget of every pixel and colour, (h, w, 3)."""
    return np.where(weights(cam) > 1, high, low)
