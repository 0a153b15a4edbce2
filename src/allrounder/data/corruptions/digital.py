"""Corruptions by processing: colours, geometry and compression."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from allrounder.data.corruptions.base import Bytes, Floats, as_bytes, uniform, unit, upto
from allrounder.data.corruptions.filters import gaussian, sampled
from allrounder.rng import Draws


def brightness(x: Bytes, more: float, draws: Draws) -> Bytes:
    """The value of hue, saturation and value, raised."""
    return as_bytes(brightened(unit(x), more))


def brightened(pixels: Floats, more: float) -> Floats:
    """Images with another value; of black, which has no hue, a grey."""
    old = pixels.max(-1, keepdims=True)
    new = np.clip(old + more, 0, 1)
    ratio: Floats = new / np.where(old == 0, 1, old)
    # The largest channel is the value itself; a product might fall short of it by a bit.
    return np.where(pixels == old, new, pixels * ratio)


def saturate(x: Bytes, how: tuple[float, float], draws: Draws) -> Bytes:
    """The saturation, changed by (factor, addition); what is grey has the hue red. An image of one channel
    has no saturation, and stays as it is."""
    if x.shape[-1] == 1:
        return x.copy()
    factor, addition = how
    pixels = unit(x)
    value = pixels.max(-1, keepdims=True)
    spread = value - pixels.min(-1, keepdims=True)
    wanted = np.clip(factor * spread / np.where(value == 0, 1, value) + addition, 0, 1)
    below = (value - pixels) / np.where(spread == 0, 1, spread)
    below = np.where(spread == 0, np.array([0.0, 1.0, 1.0]), below)
    return as_bytes(value * (1 - wanted * below))


def contrast(x: Bytes, factor: float, draws: Draws) -> Bytes:
    """Every channel drawn towards its mean."""
    # Whole numbers have the same sum in any order.
    means = x.sum(axis=(1, 2), dtype=np.int64, keepdims=True) / (255 * x.shape[1] * x.shape[2])
    return as_bytes((unit(x) - means) * factor + means)


def elastic_transform(x: Bytes, how: tuple[float, float, float], draws: Draws) -> Bytes:
    """Stretched by hand: (how far, how smoothly) pixels are shifted, and how far three points that carry all
    of the image are moved before; all as shares of the image's height."""
    n, h, w, _ = x.shape
    far, smooth, moved = (share * h for share in how)
    t, i, j = min(h, w) // 3, h // 2, w // 2
    corners = np.array([[j + t, i + t], [j + t, i - t], [j - t, i - t]], np.float64)
    one, two, origin = np.moveaxis(corners + uniform(draws.at("corners"), (n, 3, 2), -moved, moved), 1, 0)
    # Two sides of the triangle, each along an axis, are the columns of the map.
    (a, c), (b, d) = ((side / (2 * t)).T[:, :, None, None] for side in (two - origin, one - two))
    columns, rows = upto(w) - origin[:, :1, None], upto(h)[:, None] - origin[:, 1:, None]
    scale = a * d - b * c
    back = (a * rows - c * columns) / scale, (d * columns - b * rows) / scale
    pixels = sampled(unit(x), back[0] + corners[2, 1], back[1] + corners[2, 0], "reflect")
    if far == 0:
        return as_bytes(pixels)
    aside, down = (
        far * gaussian(uniform(draws.at(name), (n, h, w), -1.0, 1.0), smooth, truncate=3.0, edge="symmetric")
        for name in ("right", "down")
    )
    return as_bytes(sampled(pixels, upto(h)[:, None] + down, upto(w) + aside, "symmetric"))


def pixelate(x: Bytes, factor: float, draws: Draws) -> Bytes:
    """Made smaller by this factor and large again, both by means over boxes."""
    h, w = x.shape[1:3]
    small = int(w * factor), int(h * factor)
    box = Image.Resampling.BOX
    return _pictures(x, lambda image: image.resize(small, box).resize((w, h), box))


def jpeg_compression(x: Bytes, quality: int, draws: Draws) -> Bytes:
    """Through a JPEG of this quality, with the colours at half the resolution."""

    def through(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _pictures(x, through)


def _pictures(x: Bytes, change: Callable[[Image.Image], Image.Image]) -> Bytes:
    """One image after the other, by Pillow, which has a form of its own for images of one channel."""
    plain = x[..., 0] if x.shape[-1] == 1 else x
    changed = [np.asarray(change(Image.fromarray(image))) for image in plain]
    return np.stack(changed).reshape(x.shape)
