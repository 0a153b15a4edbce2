"""Drops on the lens: water with highlights along the rims, or mud.

The published sets are made with OpenCV. This file has its own Canny edge detector, distance transform and
histogram equalisation, because OpenCV is not a dependency. The distances are exact where OpenCV's are
approximate, so single drops may look different.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allrounder.data.corruptions.base import FloatArray, Uint8Array, arange, normal, tint, to_float, to_uint8
from allrounder.data.corruptions.filters import correlate, gaussian_filter
from allrounder.rng import Rng

WATER_TINT, MUD_TINT = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
SOBEL = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
BOX_BLUR = np.full((3, 3), 1 / 9)
CANNY_LOW, CANNY_HIGH = 50, 150
MAX_DISTANCE = 20
TAN_67_5, TAN_22_5 = np.tan(np.radians(67.5)), np.tan(np.radians(22.5))


def spatter(x: Uint8Array, constants: tuple[float, float, float, float, float, int], rng: Rng) -> Uint8Array:
    """Add drops. Constants: mean, scale, blur and threshold of the noise; strength of water or blur of mud;
    1 for mud, 0 for water."""
    mean, scale, blur, threshold, strength, mud = constants
    noise = gaussian_filter(normal(rng, (*x.shape[:3], 1), mean, scale), blur)
    if mud:
        cover = gaussian_filter((noise > threshold).astype(np.float64), strength)
        cover = np.where(cover < 0.8, 0, cover)
        return to_uint8(to_float(x) * (1 - cover) + cover * tint(MUD_TINT, x.shape[-1]))
    return add_water(x, np.where(noise < threshold, 0, noise), strength)


def add_water(x: Uint8Array, layer: FloatArray, strength: float) -> Uint8Array:
    """Add water: a layer (n, h, w, 1) whose values are 0 between the drops and at most 1 in them."""
    drops = np.floor(255 * layer)
    light = drops * _specular(drops)
    brightest = light.max(axis=(1, 2), keepdims=True)
    light = strength * light / np.where(brightest == 0, 1, brightest)
    return to_uint8(to_float(x) + light * tint(WATER_TINT, x.shape[-1]))


def _specular(drops: FloatArray) -> FloatArray:
    """Return the highlights of drops: the distance from the rim, embossed as if lit from one corner."""
    distance = np.minimum(_distance_transform(canny_edges(drops[..., 0])), MAX_DISTANCE)[..., None]
    distance = _equalise_histogram(np.floor(correlate(distance, BOX_BLUR)))
    lit = np.clip(correlate(distance, EMBOSS), 0, 255)
    return np.rint(correlate(lit, BOX_BLUR))


def canny_edges(images: FloatArray) -> NDArray[np.bool_]:
    """Detect Canny edges in images (n, h, w): ridges of the gradient magnitude above the high threshold, and
    ridges above the low threshold that are connected to them."""
    across, down = (correlate(images[..., None], kernel)[..., 0] for kernel in (SOBEL, SOBEL.T))
    magnitude = np.abs(across) + np.abs(down)
    padded = np.pad(magnitude, [(0, 0), (1, 1), (1, 1)])

    def neighbour(i: int, j: int, of: NDArray[np.float64] = padded) -> FloatArray:
        return of[:, 1 + i : 1 + i + magnitude.shape[1], 1 + j : 1 + j + magnitude.shape[2]]

    def is_ridge(i: int, j: int) -> NDArray[np.bool_]:
        return (magnitude > neighbour(-i, -j)) & (magnitude >= neighbour(i, j))

    level, upright = np.abs(down) < TAN_22_5 * np.abs(across), np.abs(down) > TAN_67_5 * np.abs(across)
    falling = across * down >= 0
    slanted = np.where(falling, is_ridge(1, 1), is_ridge(1, -1))
    ridges = np.where(level, is_ridge(0, 1), np.where(upright, is_ridge(1, 0), slanted))
    candidates = ridges & (magnitude > CANNY_LOW)
    edges = candidates & (magnitude > CANNY_HIGH)
    while True:
        padded_edges = np.pad(edges, [(0, 0), (1, 1), (1, 1)]).astype(np.float64)
        num_near = sum(neighbour(i, j, padded_edges) for i in (-1, 0, 1) for j in (-1, 0, 1))
        grown = candidates & (num_near > 0)
        if np.array_equal(grown, edges):
            return edges
        edges = grown


def _distance_transform(marked: NDArray[np.bool_]) -> FloatArray:
    """Return the distance of every pixel of images (n, h, w) to a marked pixel, or h + w without any."""
    h, w = marked.shape[1:]
    infinity = float(h + w)
    vertical, rows = np.where(marked, 0, infinity), arange(h)[:, None]
    for _ in ("from above", "from below"):
        vertical = (np.minimum.accumulate(vertical - rows, axis=1) + rows)[:, ::-1]
    squared = vertical * vertical
    best = np.full(vertical.shape, infinity * infinity)
    for shift in range(-w + 1, w):
        target, source = slice(max(0, -shift), w - max(0, shift)), slice(max(0, shift), w + min(0, shift))
        best[:, :, target] = np.minimum(best[:, :, target], squared[:, :, source] + shift * shift)
    return np.sqrt(best)


def _equalise_histogram(levels: FloatArray) -> FloatArray:
    """Spread integer levels of 0 to 255, (n, h, w, 1), so that all are about equally frequent."""
    equalised = np.empty_like(levels)
    for i, image in enumerate(levels.astype(np.int64)):
        cumulative = np.bincount(image.ravel(), minlength=256).cumsum()
        first, pixels = cumulative[image.min()], image.size
        ranks = np.rint(255 * (cumulative - first) / max(pixels - first, 1))
        equalised[i] = image if first == pixels else np.clip(ranks, 0, 255)[image]
    return equalised
