"""Places the names of points beside them, so that they cover neither each other nor the points.

All lengths are in points of 1/72 inch. Boxes are arrays of left, bottom, right and top ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[float, float]
DIRECTIONS = 16
DISTANCES = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0)
"""From a point to the nearest edge of its label."""
DISTANCE_COST = 0.3
"""Of one unit of distance, in units of covered area."""
OUTSIDE_COST = 20.0
"""Of an area outside the frame, in units of covered area."""
LABEL_COST = 10.0
"""Of an area of another label, in units of covered area."""
LEADER = 4.0
"""The size of pieces of the line from a point to its label, which should cross no other label."""
LEADER_PARTS = (0.2, 0.35, 0.5, 0.65)
"""Where these pieces are, as shares of the way."""
ROUNDS = 4


def boxes_around(centers: Floats, size: Pair) -> Floats:
    """Return boxes of one size around centres."""
    half = np.array(size) / 2
    return np.concatenate([centers - half, centers + half], axis=-1)


def place_labels(
    points: Sequence[Pair], sizes: Sequence[Pair], obstacles: Floats, frame: Floats
) -> list[Pair]:
    """Return the centre of the label of every point, given the sizes of the labels.

    Every label in turn takes its cheapest place: near its point, inside the frame, and over as little of
    other labels and obstacles as possible. A few rounds let earlier labels give way to later ones.
    """
    centers: list[Floats | None] = [None] * len(points)
    for _ in range(ROUNDS):
        for index, (point, size) in enumerate(zip(points, sizes, strict=True)):
            places, distances = _candidates(np.array(point), size)
            others = [
                boxes_around(c, sizes[i]) for i, c in enumerate(centers) if c is not None and i != index
            ]
            labels = np.array(others).reshape(-1, 4)
            boxes = boxes_around(places, size)
            outside = size[0] * size[1] - _overlap(boxes, frame[None])
            cost = DISTANCE_COST * distances + OUTSIDE_COST * outside
            cost += _overlap(boxes, obstacles) + LABEL_COST * _overlap(boxes, labels)
            for part in LEADER_PARTS:
                pieces = (1 - part) * np.array(point) + part * places
                cost += _overlap(boxes_around(pieces, (LEADER, LEADER)), labels)
            centers[index] = places[int(cost.argmin())]
    return [(float(center[0]), float(center[1])) for center in centers if center is not None]


def _candidates(point: Floats, size: Pair) -> tuple[Floats, Floats]:
    """Return possible centres of a label, and the distance from the point to the edge of each."""
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    distances = np.repeat(DISTANCES, DIRECTIONS)
    steps = distances[:, None] + np.array(size) / 2
    return point + np.tile(directions, (len(DISTANCES), 1)) * steps, distances


def _overlap(boxes: Floats, others: Floats) -> Floats:
    """Return the area of every box that the others cover, counted once for each of them."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.clip(high - low, 0, None).prod(axis=2).sum(axis=1)
