"""Names beside points."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from allrounder.report.place_labels import Pair, boxes_around, place_labels

FRAME = np.array([0.0, 0.0, 200.0, 150.0])
SIZE = (60.0, 8.0)
NONE = np.zeros((0, 4))


def overlap(a: Pair, b: Pair, size: Pair = SIZE) -> bool:
    return abs(a[0] - b[0]) < size[0] and abs(a[1] - b[1]) < size[1]


def test_a_label_is_beside_its_point():
    ((x, y),) = place_labels([(100.0, 75.0)], [SIZE], NONE, FRAME)
    assert np.hypot(max(0, abs(x - 100) - 30), max(0, abs(y - 75) - 4)) <= 5


def test_labels_of_close_points_do_not_cover_each_other_or_the_points():
    points = [(100.0 + 6 * k, 75.0 + 4 * (k % 3)) for k in range(8)]
    markers = boxes_around(np.array(points), (6.0, 6.0))
    centers = place_labels(points, [SIZE] * len(points), markers, FRAME)
    assert not [pair for pair in combinations(centers, 2) if overlap(*pair)]
    assert not [(c, p) for c in centers for p in points if overlap(c, p, (32.0, 6.0))], "but for a point"


def test_labels_stay_inside_the_frame():
    corners = [(1.0, 1.0), (199.0, 1.0), (1.0, 149.0), (199.0, 149.0)]
    for x, y in place_labels(corners, [SIZE] * 4, NONE, FRAME):
        assert 30 <= x <= 170 and 4 <= y <= 146


def test_labels_avoid_obstacles():
    wall = boxes_around(np.array([(150.0, y) for y in range(0, 150, 2)], float), (90.0, 2.0))
    ((x, _),) = place_labels([(100.0, 75.0)], [SIZE], wall, FRAME)
    assert x < 80


def test_no_points_need_no_labels():
    assert place_labels([], [], NONE, FRAME) == []
