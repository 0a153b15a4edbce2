"""What a corruption is: a change of images by chance, of five strengths, that leaves the label as it is.

Images are bytes, (n, h, w, c) as in the published sets. Chance is addressed by seed, corruption, severity and
row, so an image comes out the same alone, in any batch and in any order. For the same reason nothing here
sums over a batch, or in an order that depends on its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from allrounder.rng import Draws

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Change: TypeAlias = Callable[[Bytes, Any, Draws], Bytes]
"""From images, the constants of a severity, and draws with one stream for each image."""

SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 8
"""Pixels that an image must be high and wide; below, the blurs reach over all of it."""
LUMA = (0.299, 0.587, 0.114)


@final
@dataclass(frozen=True)
class Corruption:
    """A change, and its constants for the severities 1 to 5."""

    change: Change
    table: tuple[Any, ...]

    def __post_init__(self) -> None:
        assert len(self.table) == len(SEVERITIES)


def check_images(x: NDArray[Any]) -> None:
    """Raise unless these are images that can be corrupted."""
    shape = x.shape
    if x.dtype != np.uint8 or x.ndim != 4 or shape[3] not in (1, 3) or min(shape[1:3]) < SMALLEST:
        raise ValueError(
            f"images: got {x.dtype} of shape {shape}, expected uint8 of shape (n, h, w, 1 or 3), "
            f"at least {SMALLEST} pixels high and wide; bring them into this form"
        )


def upto(count: int) -> Ints:
    """0 .. count - 1, typed."""
    return np.arange(count, dtype=np.int64)


def unit(x: Bytes) -> Floats:
    """From bytes to numbers in [0, 1]."""
    return x / 255.0


def as_bytes(x: Floats) -> Bytes:
    """From numbers, clipped to [0, 1], to bytes; rounded down, as in the published sets."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def grey(x: Floats) -> Floats:
    """The brightness of every pixel, (n, h, w, 1); a grey image is its own."""
    if x.shape[-1] == 1:
        return x
    return LUMA[0] * x[..., :1] + LUMA[1] * x[..., 1:2] + LUMA[2] * x[..., 2:]


def tinted(colour: tuple[float, float, float], channels: int) -> Floats:
    """A colour for images of so many channels: itself, or its brightness."""
    return (
        np.array(colour)
        if channels == 3
        else np.array([sum(a * b for a, b in zip(LUMA, colour, strict=True))])
    )


def uniform(draws: Draws, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Floats:
    """Uniform on [low, high), each row from its own stream."""
    return low + (high - low) * draws.uniform(torch.empty(shape, dtype=torch.float64)).numpy()


def normal(draws: Draws, shape: tuple[int, ...], mean: float = 0.0, scale: float = 1.0) -> Floats:
    """Normal, each row from its own stream."""
    return mean + scale * draws.normal(torch.empty(shape, dtype=torch.float64)).numpy()


def poisson(draws: Draws, rates: Floats) -> Floats:
    """Counts of these rates, each row from its own stream."""
    assert draws.rows is not None
    counts = np.empty_like(rates)
    for number, row in enumerate(draws.rows):
        stream = draws.at("row", row).generator()
        counts[number] = torch.poisson(torch.from_numpy(rates[number]), generator=stream).numpy()
    return counts
