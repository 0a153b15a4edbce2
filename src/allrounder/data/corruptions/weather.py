"""Corruptions by weather.

Frost differs from the published sets: those lay six photographs of frost over the images, which are not part
of this package; here a texture is computed that has the same use, with a brightness of our choice.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from allrounder.data.corruptions.base import (
    Bytes,
    Floats,
    as_bytes,
    grey,
    normal,
    tinted,
    uniform,
    unit,
    upto,
)
from allrounder.data.corruptions.filters import streaked, zoomed
from allrounder.rng import Draws

TEXTURES, TEXTURE_SIDE = 5, 256
FROST = (0.88, 0.96, 1.0)


def snow(x: Bytes, how: tuple[float, float, float, float, float, float, float], draws: Draws) -> Bytes:
    """Flakes that fall: (mean, scale) of the layer, its zoom and threshold, (radius, sigma) of the fall, and
    how much of the image stays as it is rather than pale."""
    mean, scale, zoom, threshold, radius, sigma, kept = how
    flakes = snowflakes(normal(draws.at("flakes"), (*x.shape[:3], 1), mean, scale), zoom, threshold)
    angles = uniform(draws.at("angle"), (len(x),), -135.0, -45.0).tolist()
    return snowed(unit(x), streaked(flakes, radius, sigma, angles), kept)


def snowflakes(layer: Floats, zoom: float, threshold: float) -> Floats:
    """A random layer as flakes that do not fall yet."""
    layer = zoomed(layer, zoom)
    return unit(as_bytes(np.where(layer < threshold, 0, layer)))


def snowed(pixels: Floats, fallen: Floats, kept: float) -> Bytes:
    """A pale image with a layer of snow, which is used twice: as it is, and turned around."""
    fallen = np.rint(255 * fallen) / 255
    pale = kept * pixels + (1 - kept) * np.maximum(pixels, grey(pixels) * 1.5 + 0.5)
    return as_bytes(pale + fallen + fallen[:, ::-1, ::-1])


def frost(x: Bytes, how: tuple[float, float], draws: Draws) -> Bytes:
    """Ice on the lens: (share of the image, share of the texture). The texture is computed, see above."""
    n, h, w, channels = x.shape
    place = (uniform(draws, (n, 3)) * (TEXTURES, TEXTURE_SIDE, TEXTURE_SIDE)).astype(np.int64)
    number, top, left = (place[:, column] for column in range(3))
    rows = (top[:, None] + upto(h)) % TEXTURE_SIDE
    columns = (left[:, None] + upto(w)) % TEXTURE_SIDE
    ice = frost_textures(draws.seed)[number[:, None, None], rows[:, :, None], columns[:, None, :]]
    return as_bytes(how[0] * unit(x) + how[1] * ice[..., None] * tinted(FROST, channels))


@lru_cache(maxsize=4)
def frost_textures(seed: int) -> Floats:
    """Bright ridges, large and small, on a cloudy ground, in [0, 1]; the sides fit together."""
    draws = Draws(seed).at("frost").per_example(torch.arange(TEXTURES))
    clouds, *ridges = (
        fractal(draws.at(name), TEXTURES, TEXTURE_SIDE, decay)
        for name, decay in (("clouds", 1.2), ("large", 1.4), ("small", 1.2))
    )
    crystals = sum((1 - 10 * np.abs(ridge - 0.5)).clip(0) for ridge in ridges)
    return np.clip(0.7 * clouds + 0.6 * crystals, 0, 1)


def fog(x: Bytes, how: tuple[float, float], draws: Draws) -> Bytes:
    """Clouds over the image: (strength, how much smoother the clouds are than their parts)."""
    n, h, w, _ = x.shape
    strength, decay = how
    pixels, side = unit(x), 1 << (max(h, w) - 1).bit_length()
    brightest = pixels.max(axis=(1, 2, 3), keepdims=True)
    clouded = pixels + strength * fractal(draws, n, side, decay)[:, :h, :w, None]
    return as_bytes(clouded * brightest / (brightest + strength))


def fractal(draws: Draws, count: int, side: int, decay: float) -> Floats:
    """Maps of clouds in [0, 1], by halving the distance of known points; `side` is a power of two.

    A new point is the mean of four around it plus chance, first in the middle of squares, then of their
    sides; the square root of that chance is divided by `decay` at every halving. The sides fit together.
    """
    height, step, spread = np.zeros((count, side, side)), side, 100.0

    def between(four: Floats, name: str) -> Floats:
        chance = uniform(draws.at(name, step), four.shape, -spread, spread)
        return four / 4 + spread * chance

    while step >= 2:
        corner, middle = slice(0, None, step), slice(step // 2, None, step)
        corners = height[:, corner, corner]
        pairs = corners + np.roll(corners, -1, 1)
        centres = between(pairs + np.roll(pairs, -1, 2), "centres")
        height[:, middle, middle] = centres
        level = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        upright = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        height[:, corner, middle] = between(level, "level")
        height[:, middle, corner] = between(upright, "upright")
        step, spread = step // 2, spread / decay
    height -= height.min(axis=(1, 2), keepdims=True)
    return height / height.max(axis=(1, 2), keepdims=True)
