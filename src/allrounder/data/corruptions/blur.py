"""Corruptions that blur."""

from __future__ import annotations

import numpy as np

from allrounder.data.corruptions.base import Uint8Array, arange, round_to_uint8, to_float, to_uint8, uniform
from allrounder.data.corruptions.filters import clipped_zoom, correlate, disk, gaussian_filter, motion_filter
from allrounder.rng import Rng


def gaussian_blur(x: Uint8Array, sigma: float, rng: Rng) -> Uint8Array:
    """Blur with a Gaussian."""
    return to_uint8(gaussian_filter(to_float(x), sigma))


def defocus_blur(x: Uint8Array, constants: tuple[float, float], rng: Rng) -> Uint8Array:
    """Blur with a disk, as a lens out of focus does. Constants: (radius, smoothing of the rim)."""
    return to_uint8(correlate(to_float(x), disk(*constants)))


def glass_blur(x: Uint8Array, constants: tuple[float, int], rng: Rng) -> Uint8Array:
    """Blur as frosted glass does. Constants: (sigma of the blur before and after, rounds of pixel moves).

    In every round a pixel takes the value of itself, or of its neighbour above, to the left, or both. The
    published program means to swap the two pixels, but both end with the neighbour's value, and the published
    sets are made this way.
    """
    sigma, rounds = constants
    x = to_uint8(gaussian_filter(to_float(x), sigma))
    n, h, w, _ = x.shape
    image = arange(n)[:, None, None]
    for round_ in range(rounds):
        up, left = np.moveaxis(uniform(rng.fold_in("move", round_), (n, h, w, 2)) < 0.5, -1, 0)
        for moves in (up, left):
            moves[:, :2] = False
            moves[:, :, :2] = False
        x = x[image, arange(h)[:, None] - up, arange(w) - left]
    return to_uint8(gaussian_filter(to_float(x), sigma))


def motion_blur(x: Uint8Array, constants: tuple[float, float], rng: Rng) -> Uint8Array:
    """Blur along a random line, at most 45 degrees from the horizontal. Constants: (radius, sigma)."""
    angles = uniform(rng, (len(x),), -45.0, 45.0).tolist()
    return round_to_uint8(motion_filter(to_float(x), *constants, angles))


def zoom_blur(x: Uint8Array, end: float, rng: Rng) -> Uint8Array:
    """Average the image and its enlargements by 1, 1.01, 1.02, ... to `end`.

    The factors are those of the published program to the last bit: 1.25 becomes 1.2500000000000002, which
    enlarges 26 pixels to 33 instead of 32, and the first two ranges include their ends.
    """
    pixels = to_float(x)
    total = pixels
    factors = np.arange(1, end, 0.01).tolist()
    for factor in factors:
        total = total + clipped_zoom(pixels, factor)
    return to_uint8(total / (len(factors) + 1))
