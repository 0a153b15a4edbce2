"""Digital corruptions: colours, geometry and compression."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from allrounder.data.corruptions.base import FloatArray, Uint8Array, arange, to_float, to_uint8, uniform
from allrounder.data.corruptions.filters import gaussian_filter, sample_bilinear
from allrounder.rng import Rng


def brightness(x: Uint8Array, amount: float, rng: Rng) -> Uint8Array:
    """Add `amount` to the value (HSV) of every pixel; black, which has no hue, becomes grey."""
    pixels = to_float(x)
    old = pixels.max(-1, keepdims=True)
    new = np.clip(old + amount, 0, 1)
    ratio: FloatArray = new / np.where(old == 0, 1, old)
    # The largest channel equals the value exactly; the product might round below it.
    return to_uint8(np.where(pixels == old, new, pixels * ratio))


def saturate(x: Uint8Array, constants: tuple[float, float], rng: Rng) -> Uint8Array:
    """Change the saturation (HSV). Constants: (factor, offset). Grey pixels have the hue red; an image with
    one channel has no saturation and is returned unchanged."""
    if x.shape[-1] == 1:
        return x.copy()
    factor, offset = constants
    pixels = to_float(x)
    value = pixels.max(-1, keepdims=True)
    chroma = value - pixels.min(-1, keepdims=True)
    saturation = np.clip(factor * chroma / np.where(value == 0, 1, value) + offset, 0, 1)
    distance = (value - pixels) / np.where(chroma == 0, 1, chroma)
    distance = np.where(chroma == 0, np.array([0.0, 1.0, 1.0]), distance)
    return to_uint8(value * (1 - saturation * distance))


def contrast(x: Uint8Array, factor: float, rng: Rng) -> Uint8Array:
    """Scale the distance of every channel from its mean."""
    # Sums of integers do not depend on the order.
    means = x.sum(axis=(1, 2), dtype=np.int64, keepdims=True) / (255 * x.shape[1] * x.shape[2])
    return to_uint8((to_float(x) - means) * factor + means)


def elastic_transform(x: Uint8Array, constants: tuple[float, float, float], rng: Rng) -> Uint8Array:
    """Apply a random affine map, then a smooth random displacement of every pixel. Constants, as fractions of
    the height: (largest displacement, its smoothness, largest move of the three points of the affine map)."""
    n, h, w, _ = x.shape
    displacement, smoothness, max_move = (fraction * h for fraction in constants)
    t, i, j = min(h, w) // 3, h // 2, w // 2
    corners = np.array([[j + t, i + t], [j + t, i - t], [j - t, i - t]], np.float64)
    moves = uniform(rng.fold_in("corners"), (n, 3, 2), -max_move, max_move)
    first, second, origin = np.moveaxis(corners + moves, 1, 0)
    # Two sides of the triangle, each along an axis, are the columns of the map.
    (a, c), (b, d) = ((side / (2 * t)).T[:, :, None, None] for side in (second - origin, first - second))
    columns, rows = arange(w) - origin[:, :1, None], arange(h)[:, None] - origin[:, 1:, None]
    determinant = a * d - b * c
    source_rows = (a * rows - c * columns) / determinant + corners[2, 1]
    source_columns = (d * columns - b * rows) / determinant + corners[2, 0]
    pixels = sample_bilinear(to_float(x), source_rows, source_columns, "reflect")
    if displacement == 0:
        return to_uint8(pixels)
    noise = (uniform(rng.fold_in(name), (n, h, w), -1.0, 1.0) for name in ("right", "down"))
    right, down = (displacement * gaussian_filter(field, smoothness, 3.0, "symmetric") for field in noise)
    return to_uint8(sample_bilinear(pixels, arange(h)[:, None] + down, arange(w) + right, "symmetric"))


def pixelate(x: Uint8Array, factor: float, rng: Rng) -> Uint8Array:
    """Shrink the image by a factor and enlarge it again, both with a box filter."""
    h, w = x.shape[1:3]
    small = int(w * factor), int(h * factor)
    box = Image.Resampling.BOX
    return _map_images(x, lambda image: image.resize(small, box).resize((w, h), box))


def jpeg_compression(x: Uint8Array, quality: int, rng: Rng) -> Uint8Array:
    """Save and load the image as JPEG of this quality, with colours at half the resolution."""

    def compress(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _map_images(x, compress)


def _map_images(x: Uint8Array, change: Callable[[Image.Image], Image.Image]) -> Uint8Array:
    """Apply a Pillow function to one image after the other; Pillow wants (h, w) for images of one channel."""
    arrays = x[..., 0] if x.shape[-1] == 1 else x
    changed = [np.asarray(change(Image.fromarray(image))) for image in arrays]
    return np.stack(changed).reshape(x.shape)
