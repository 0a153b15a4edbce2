"""Weather corruptions.

Frost differs from the published sets: they overlay six photographs of frost, which are not part of this
package. Here a computed texture with a brightness of our choice takes their position.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from allrounder.data.corruptions.base import (
    FloatArray,
    Uint8Array,
    arange,
    luminance,
    normal,
    tint,
    to_float,
    to_uint8,
    uniform,
)
from allrounder.data.corruptions.filters import clipped_zoom, motion_filter
from allrounder.rng import Rng

NUM_TEXTURES, TEXTURE_SIDE = 5, 256
FROST_TINT = (0.88, 0.96, 1.0)


def snow(
    x: Uint8Array, constants: tuple[float, float, float, float, float, float, float], rng: Rng
) -> Uint8Array:
    """Whiten the image and add falling snowflakes. Constants: mean, scale, zoom and threshold of the layer of
    flakes; radius and sigma of their motion blur; share of the image that is not whitened."""
    mean, scale, zoom, threshold, radius, sigma, keep = constants
    flakes = make_snowflakes(normal(rng.fold_in("flakes"), (*x.shape[:3], 1), mean, scale), zoom, threshold)
    angles = uniform(rng.fold_in("angle"), (len(x),), -135.0, -45.0).tolist()
    return blend_snow(to_float(x), motion_filter(flakes, radius, sigma, angles), keep)


def make_snowflakes(noise: FloatArray, zoom: float, threshold: float) -> FloatArray:
    """Turn a layer of noise into snowflakes without motion blur."""
    noise = clipped_zoom(noise, zoom)
    return to_float(to_uint8(np.where(noise < threshold, 0, noise)))


def blend_snow(pixels: FloatArray, flakes: FloatArray, keep: float) -> Uint8Array:
    """Whiten an image and add the layer of flakes twice: as it is, and rotated by 180 degrees."""
    flakes = np.rint(255 * flakes) / 255
    whitened = keep * pixels + (1 - keep) * np.maximum(pixels, luminance(pixels) * 1.5 + 0.5)
    return to_uint8(whitened + flakes + flakes[:, ::-1, ::-1])


def frost(x: Uint8Array, constants: tuple[float, float], rng: Rng) -> Uint8Array:
    """Add a random crop of a frost texture. Constants: (weight of the image, weight of the texture)."""
    n, h, w, channels = x.shape
    position = (uniform(rng, (n, 3)) * (NUM_TEXTURES, TEXTURE_SIDE, TEXTURE_SIDE)).astype(np.int64)
    texture, top, left = (position[:, column] for column in range(3))
    rows = (top[:, None] + arange(h)) % TEXTURE_SIDE
    columns = (left[:, None] + arange(w)) % TEXTURE_SIDE
    ice = frost_textures(rng.seed)[texture[:, None, None], rows[:, :, None], columns[:, None, :]]
    return to_uint8(constants[0] * to_float(x) + constants[1] * ice[..., None] * tint(FROST_TINT, channels))


@lru_cache(maxsize=4)
def frost_textures(seed: int) -> FloatArray:
    """Return tileable textures in [0, 1]: large and small bright ridges on a cloudy background."""
    rng = Rng(seed).fold_in("frost").per_example(torch.arange(NUM_TEXTURES))
    clouds, *ridges = (
        plasma_fractal(rng.fold_in(name), NUM_TEXTURES, TEXTURE_SIDE, decay)
        for name, decay in (("clouds", 1.2), ("large", 1.4), ("small", 1.2))
    )
    crystals = sum((1 - 10 * np.abs(ridge - 0.5)).clip(0) for ridge in ridges)
    return np.clip(0.7 * clouds + 0.6 * crystals, 0, 1)


def fog(x: Uint8Array, constants: tuple[float, float], rng: Rng) -> Uint8Array:
    """Add clouds to the image. Constants: (strength, decay of the plasma fractal)."""
    n, h, w, _ = x.shape
    strength, decay = constants
    pixels = to_float(x)
    side = 1 << (max(h, w) - 1).bit_length()
    brightest = pixels.max(axis=(1, 2, 3), keepdims=True)
    clouded = pixels + strength * plasma_fractal(rng, n, side, decay)[:, :h, :w, None]
    return to_uint8(clouded * brightest / (brightest + strength))


def plasma_fractal(rng: Rng, count: int, side: int, decay: float) -> FloatArray:
    """Return `count` tileable cloud maps in [0, 1] by the diamond-square algorithm; `side` is a power of two.

    A new point is the mean of the four around it plus noise: first the centres of the squares, then the
    middles of their sides. Every halving of the squares divides the root of the noise scale by `decay`.
    """
    height = np.zeros((count, side, side))
    step, spread = side, 100.0

    def perturb_mean(sum_of_four: FloatArray, name: str) -> FloatArray:
        noise = uniform(rng.fold_in(name, step), sum_of_four.shape, -spread, spread)
        return sum_of_four / 4 + spread * noise

    while step >= 2:
        corner, middle = slice(0, None, step), slice(step // 2, None, step)
        corners = height[:, corner, corner]
        pairs = corners + np.roll(corners, -1, 1)
        centres = perturb_mean(pairs + np.roll(pairs, -1, 2), "centres")
        height[:, middle, middle] = centres
        level = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        upright = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        height[:, corner, middle] = perturb_mean(level, "level")
        height[:, middle, corner] = perturb_mean(upright, "upright")
        step, spread = step // 2, spread / decay
    height -= height.min(axis=(1, 2), keepdims=True)
    return height / height.max(axis=(1, 2), keepdims=True)
