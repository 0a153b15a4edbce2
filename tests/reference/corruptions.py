"""Corruptions as one would explain them: one image, one pixel after the other, or by another library."""

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


def truncated(pixels: Floats) -> Bytes:
    return np.uint8(np.clip(pixels, 0, 1) * 255)  # type: ignore[return-value]


def contrast(image: Bytes, factor: float) -> Bytes:
    pixels = image / 255
    for channel in range(image.shape[2]):
        mean = float(np.mean(pixels[:, :, channel]))
        pixels[:, :, channel] = (pixels[:, :, channel] - mean) * factor + mean
    return truncated(pixels)


def through_hsv(image: Bytes, change: Callable[[float, float, float], tuple[float, float, float]]) -> Bytes:
    """Every pixel by the standard library's colours."""
    changed = np.empty(image.shape)
    for i in range(image.shape[0]):
        for j in range(image.shape[1]):
            changed[i, j] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(image[i, j] / 255))))
    return truncated(changed)


def brightness(image: Bytes, more: float) -> Bytes:
    return through_hsv(image, lambda h, s, v: (h, s, min(max(v + more, 0), 1)))


def saturate(image: Bytes, factor: float, addition: float) -> Bytes:
    return through_hsv(image, lambda h, s, v: (h, min(max(s * factor + addition, 0), 1), v))


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
    """A line of whole pixels from every pixel on, with a half bell of weights."""
    h, w = image.shape[:2]
    reach = 2 * math.ceil(radius) + 1
    bell = np.exp(-(np.arange(reach) ** 2) / (2 * sigma**2))
    bell /= bell.sum()
    blurred = np.zeros(image.shape)
    for i in range(h):
        for j in range(w):
            for k in range(reach):
                down = math.ceil(k * math.sin(math.radians(angle)) - 0.5)
                right = math.ceil(k * math.cos(math.radians(angle)) - 0.5)
                blurred[i, j] += bell[k] * image[min(max(i + down, 0), h - 1), min(max(j + right, 0), w - 1)]
    return blurred


def glass(image: Bytes, up: NDArray[np.bool_], left: NDArray[np.bool_]) -> Bytes:
    """One round from the last pixel on, with the assignment between views that only copies."""
    x = image.copy()
    for i in range(x.shape[0] - 1, 1, -1):
        for j in range(x.shape[1] - 1, 1, -1):
            m, n = i - int(up[i, j]), j - int(left[i, j])
            x[i, j], x[m, n] = x[m, n], x[i, j]
    return x
