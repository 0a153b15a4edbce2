"""Drops on the lens: of water, with light along their rims, or of mud.

The published sets are made with OpenCV; its edge detector, distances and histogram are written anew here,
with exact distances where those are approximate, so single drops may look different.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allrounder.data.corruptions.base import Bytes, Floats, as_bytes, normal, tinted, unit
from allrounder.data.corruptions.filters import correlated, gaussian
from allrounder.rng import Draws

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
SOBEL = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
SLOPE = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
MEAN = np.full((3, 3), 1 / 9)
WEAK, STRONG, FARTHEST = 50, 150, 20
STEEP, FLAT = np.tan(np.radians(67.5)), np.tan(np.radians(22.5))


def spatter(x: Bytes, how: tuple[float, float, float, float, float, int], draws: Draws) -> Bytes:
    """Drops: (mean, scale, blur, threshold) of the layer, strength of water or blur of mud, 1 for mud."""
    mean, scale, blur, threshold, strength, mud = how
    layer = gaussian(normal(draws, (*x.shape[:3], 1), mean, scale), blur)
    if mud:
        cover = gaussian((layer > threshold).astype(np.float64), strength)
        cover = np.where(cover < 0.8, 0, cover)
        return as_bytes(unit(x) * (1 - cover) + cover * tinted(MUD, x.shape[-1]))
    drops = np.floor(255 * np.where(layer < threshold, 0, layer))
    light = drops * _shine(drops)
    most = light.max(axis=(1, 2), keepdims=True)
    light = strength * light / np.where(most == 0, 1, most)
    return as_bytes(unit(x) + light * tinted(WATER, x.shape[-1]))


def _shine(drops: Floats) -> Floats:
    """How bright a drop is: a slope, lit from one corner, of the distance from its rim."""
    far = np.minimum(_distances(edges(drops[..., 0])), FARTHEST)[..., None]
    far = _equalised(np.floor(correlated(far, MEAN)))
    lit = np.clip(correlated(far, SLOPE), 0, 255)
    return np.rint(correlated(lit, MEAN))


def edges(images: Floats) -> NDArray[np.bool_]:
    """Canny's edges of images (n, h, w): ridges of the slope that are strong, or lead on from strong ones."""
    across, down = (correlated(images[..., None], kernel)[..., 0] for kernel in (SOBEL, SOBEL.T))
    steep = np.abs(across) + np.abs(down)
    padded = np.pad(steep, [(0, 0), (1, 1), (1, 1)])

    def beside(i: int, j: int, of: NDArray[np.float64] = padded) -> Floats:
        return of[:, 1 + i : 1 + i + steep.shape[1], 1 + j : 1 + j + steep.shape[2]]

    def ridge(i: int, j: int) -> NDArray[np.bool_]:
        return (steep > beside(-i, -j)) & (steep >= beside(i, j))

    level, upright = np.abs(down) < FLAT * np.abs(across), np.abs(down) > STEEP * np.abs(across)
    falling = across * down >= 0
    slanted = np.where(falling, ridge(1, 1), ridge(1, -1))
    thin = np.where(level, ridge(0, 1), np.where(upright, ridge(1, 0), slanted))
    maybe = thin & (steep > WEAK)
    found = maybe & (steep > STRONG)
    while True:
        wide = np.pad(found, [(0, 0), (1, 1), (1, 1)]).astype(np.float64)
        near = sum(beside(i, j, wide) for i in (-1, 0, 1) for j in (-1, 0, 1))
        grown = maybe & (near > 0)
        if np.array_equal(grown, found):
            return found
        found = grown


def _distances(marked: NDArray[np.bool_]) -> Floats:
    """How far every pixel of images (n, h, w) is from a marked one; far where there is none."""
    h, w = marked.shape[1:]
    none = float(h + w)
    up = np.where(marked, 0, none)
    for i in range(1, h):
        up[:, i] = np.minimum(up[:, i], up[:, i - 1] + 1)
    for i in range(h - 2, -1, -1):
        up[:, i] = np.minimum(up[:, i], up[:, i + 1] + 1)
    square, best = up * up, np.full(up.shape, none * none)
    for shift in range(-w + 1, w):
        here, there = slice(max(0, -shift), w - max(0, shift)), slice(max(0, shift), w + min(0, shift))
        best[:, :, here] = np.minimum(best[:, :, here], square[:, :, there] + shift * shift)
    return np.sqrt(best)


def _equalised(levels: Floats) -> Floats:
    """Whole levels of 0 to 255, (n, h, w, 1), spread so that all are about as frequent."""
    spread = np.empty_like(levels)
    for number, image in enumerate(levels.astype(np.int64)):
        below = np.bincount(image.ravel(), minlength=256).cumsum()
        first, pixels = below[image.min()], image.size
        ranks = np.rint(255 * (below - first) / max(pixels - first, 1))
        spread[number] = image if first == pixels else np.clip(ranks, 0, 255)[image]
    return spread
