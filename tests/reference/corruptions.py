"""Slow reference corruptions: one image and one pixel at a time, or by another library."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


def truncate(pixels: Floats) -> Bytes:
    return np.uint8(np.clip(pixels, 0, 1) * 255)  # type: ignore[return-value]


def contrast(image: Bytes, factor: float) -> Bytes:
    pixels = image / 255
    for channel in range(image.shape[2]):
        mean = float(np.mean(pixels[:, :, channel]))
        pixels[:, :, channel] = (pixels[:, :, channel] - mean) * factor + mean
    return truncate(pixels)


def through_hsv(image: Bytes, change: Callable[[float, float, float], tuple[float, float, float]]) -> Bytes:
    """Change every pixel in HSV, with the standard library."""
    changed = np.empty(image.shape)
    for i in range(image.shape[0]):
        for j in range(image.shape[1]):
            changed[i, j] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(image[i, j] / 255))))
    return truncate(changed)


def brightness(image: Bytes, amount: float) -> Bytes:
    return through_hsv(image, lambda h, s, v: (h, s, min(max(v + amount, 0), 1)))


def saturate(image: Bytes, factor: float, offset: float) -> Bytes:
    return through_hsv(image, lambda h, s, v: (h, min(max(s * factor + offset, 0), 1), v))


def jpeg(image: Bytes, quality: int) -> Bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    file.seek(0)
    return np.array(Image.open(file))


def pixelate(image: Bytes, factor: float) -> Bytes:
    h, w = image.shape[:2]
    small = Image.fromarray(image).resize((int(w * factor), int(h * factor)), Image.Resampling.BOX)
    return np.array(small.resize((w, h), Image.Resampling.BOX))


def motion(image: Floats, radius: float, sigma: float, angle: float) -> Floats:
    """Average whole pixels along a line from every pixel, with one-sided Gaussian weights."""
    h, w = image.shape[:2]
    reach = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(reach) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    blurred = np.zeros(image.shape)
    for i in range(h):
        for j in range(w):
            for k in range(reach):
                down = math.ceil(k * math.sin(math.radians(angle)) - 0.5)
                right = math.ceil(k * math.cos(math.radians(angle)) - 0.5)
                blurred[i, j] += (
                    weights[k] * image[min(max(i + down, 0), h - 1), min(max(j + right, 0), w - 1)]
                )
    return blurred


def glass(image: Bytes, up: NDArray[np.bool_], left: NDArray[np.bool_]) -> Bytes:
    """Run one round from the last pixel on; the assignment between views only copies, as published."""
    x = image.copy()
    for i in range(x.shape[0] - 1, 1, -1):
        for j in range(x.shape[1] - 1, 1, -1):
            m, n = i - int(up[i, j]), j - int(left[i, j])
            x[i, j], x[m, n] = x[m, n], x[i, j]
    return x
