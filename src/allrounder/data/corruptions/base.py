"""The interface of a corruption: a random change of images with five severities that keeps the label.

Images are uint8 arrays (n, h, w, c), as in the published sets. Random numbers are addressed by seed,
corruption, severity and row, so an image is corrupted in the same way alone, in any batch and in any order.
For the same reason no function here sums over a batch, or in an order that depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from allrounder.config.fields import did_you_mean
from allrounder.rng import Rng

Uint8Array: TypeAlias = NDArray[np.uint8]
FloatArray: TypeAlias = NDArray[np.float64]

SEVERITIES = (1, 2, 3, 4, 5)
MIN_SIDE = 8
"""Minimum height and width of an image in pixels; on smaller images the blurs would cover everything."""
LUMA = (0.299, 0.587, 0.114)
"""Perceived brightness of red, green and blue (ITU-R BT.601)."""


@final
@dataclass(frozen=True)
class Corruption:
    """A function of images, constants and random numbers, and its constants for the severities 1 to 5."""

    apply: Callable[[Uint8Array, Any, Rng], Uint8Array]
    constants: tuple[Any, ...]


def check_name(role: str, name: str, table: Collection[str]) -> None:
    """Raise ValueError unless the name is in the table."""
    if name not in table:
        hint = did_you_mean(name, table)
        raise ValueError(f"{role}: got {name!r}, expected one of {', '.join(table)}{hint}")


def rng_per_image(rng: Rng, images: NDArray[Any], rows: Sequence[int] | None) -> Rng:
    """Check images and their rows, and return random numbers with one stream per row."""
    shape = images.shape
    if images.dtype != np.uint8 or len(shape) != 4 or shape[3] not in (1, 3) or min(shape[1:3]) < MIN_SIDE:
        raise ValueError(
            f"images: got {images.dtype} of shape {shape}, expected uint8 of shape (n, h, w, 1 or 3), "
            f"at least {MIN_SIDE} pixels high and wide; convert them first"
        )
    rows = range(len(images)) if rows is None else rows
    if len(rows) != len(images):
        raise ValueError(f"rows: got {len(rows)} for {len(images)} images, expected one for each")
    return rng.per_example(torch.tensor(list(rows)))


def arange(stop: int) -> NDArray[np.int64]:
    """Return 0 .. stop - 1: `np.arange` with a type that strict type checking can follow."""
    return np.arange(stop, dtype=np.int64)


def to_float(x: Uint8Array) -> FloatArray:
    """Convert bytes to numbers in [0, 1]."""
    return x / 255.0


def to_uint8(x: FloatArray) -> Uint8Array:
    """Clip numbers to [0, 1] and convert them to bytes, rounded down as in the published sets."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def round_to_uint8(x: FloatArray) -> Uint8Array:
    """Convert numbers in [0, 1] to the nearest bytes."""
    return np.rint(255 * x).astype(np.uint8)


def luminance(x: FloatArray) -> FloatArray:
    """Return the brightness of every pixel, (n, h, w, 1); a grey image is returned as it is."""
    if x.shape[-1] == 1:
        return x
    return LUMA[0] * x[..., :1] + LUMA[1] * x[..., 1:2] + LUMA[2] * x[..., 2:]


def tint(colour: tuple[float, float, float], channels: int) -> FloatArray:
    """Return a colour for images with 3 channels, or its brightness for images with 1 channel."""
    return np.array(colour if channels == 3 else [sum(a * b for a, b in zip(LUMA, colour, strict=True))])


def uniform(rng: Rng, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> FloatArray:
    """Draw uniform numbers on [low, high), each row from its own stream."""
    return low + (high - low) * rng.uniform(torch.empty(shape, dtype=torch.float64)).numpy()


def normal(rng: Rng, shape: tuple[int, ...], mean: float = 0.0, scale: float = 1.0) -> FloatArray:
    """Draw normal numbers, each row from its own stream."""
    return mean + scale * rng.normal(torch.empty(shape, dtype=torch.float64)).numpy()


def poisson(rng: Rng, rates: FloatArray) -> FloatArray:
    """Draw Poisson counts with the given rates, each row from its own stream."""
    assert rng.rows is not None
    counts = np.empty_like(rates)
    for i, row in enumerate(rng.rows):
        generator = rng.fold_in("row", row).generator()
        counts[i] = torch.poisson(torch.from_numpy(rates[i]), generator=generator).numpy()
    return counts
