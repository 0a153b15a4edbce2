"""Corruptions that blur."""

from __future__ import annotations

import numpy as np

from allrounder.data.corruptions.base import Bytes, as_bytes, uniform, unit, upto
from allrounder.data.corruptions.filters import correlated, disk, gaussian, streaked, zoomed
from allrounder.rng import Draws


def gaussian_blur(x: Bytes, sigma: float, draws: Draws) -> Bytes:
    """Out of focus, as a Gaussian."""
    return as_bytes(gaussian(unit(x), sigma))


def defocus_blur(x: Bytes, how: tuple[float, float], draws: Draws) -> Bytes:
    """Out of focus, as a disk: (radius, softness of its rim)."""
    return as_bytes(correlated(unit(x), disk(*how)))


def glass_blur(x: Bytes, how: tuple[float, int], draws: Draws) -> Bytes:
    """Seen through frosted glass: (sigma of the blur before and after, rounds in which pixels move by one).

    A pixel takes the value of itself, or of its neighbour above, to the left, or both. The published program
    means to exchange the two, but both of them end with the neighbour's value; the sets are made so.
    """
    sigma, rounds = how
    x = as_bytes(gaussian(unit(x), sigma))
    n, h, w, _ = x.shape
    each = upto(n)[:, None, None]
    for number in range(rounds):
        up, left = np.moveaxis(uniform(draws.at("move", number), (n, h, w, 2)) < 0.5, -1, 0)
        up[:, :2], up[:, :, :2], left[:, :2], left[:, :, :2] = False, False, False, False
        x = x[each, upto(h)[:, None] - up, upto(w) - left]
    return as_bytes(gaussian(unit(x), sigma))


def motion_blur(x: Bytes, how: tuple[float, float], draws: Draws) -> Bytes:
    """A moving camera: (radius, sigma) of the line, at up to 45 degrees from the horizontal."""
    angles = uniform(draws, (len(x),), -45.0, 45.0).tolist()
    return np.rint(255 * streaked(unit(x), *how, angles)).astype(np.uint8)


def zoom_blur(x: Bytes, steps: int, draws: Draws) -> Bytes:
    """A camera that comes nearer: the mean of the image and enlargements by 0, 1, 2, ... percent.

    How many there are is what the published ranges (1, 1.06 and so on, by 0.01) have in floating point, where
    the first two of them include their ends.
    """
    pixels = unit(x)
    total = pixels
    for percent in range(steps):
        total = total + zoomed(pixels, 1 + percent / 100)
    return as_bytes(total / (steps + 1))
