"""Images that two networks classify differently, as values, and the pictures of a page made from them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from allrounder.errors import InputError
from allrounder.report.corruption_metrics import FloatArray

Pixels: TypeAlias = NDArray[np.uint8]
"""An image of 8 bits: height, width, and 1 or 3 channels."""

MAP_COLORS = "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725"
"""Colours for 0 to 1, between which colours are interpolated: viridis, whose lightness rises evenly."""
MAP_OPACITY = 0.6
FACTORS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""The factors by which perturbations may be amplified."""
MAX_CLIPPED_SHARE = 0.01
"""The share of the values of a perturbation that may become white or black."""
MIN_SIDE = 64
"""Smaller pictures are enlarged, so that they can be seen after they are saved from a page."""


@final
@dataclass(frozen=True)
class Prediction:
    """The class that a network predicts for an image, and the softmax probability of this class."""

    name: str
    confidence: float
    is_correct: bool

    def __str__(self) -> str:
        return f"{self.name} ({100 * self.confidence:.1f}%)"


@final
@dataclass(frozen=True, eq=False)
class GalleryView:
    """What one network does with an image, and with its own adversarial version of the image.

    Predictions and maps are those of the pixels that are shown, all 8 bits of them.
    """

    row: str
    """The name of the network: that of its row in a report."""
    natural: Prediction
    natural_map: FloatArray | None
    """The Grad-CAM map of the predicted class, height and width, about [0, 1]; None without feature maps."""
    adversarial_image: Pixels
    perturbation: FloatArray
    """The adversarial image minus the natural one, in units of [0, 1]."""
    adversarial: Prediction
    adversarial_map: FloatArray | None


@final
@dataclass(frozen=True, eq=False)
class GalleryItem:
    """One image of the test set, seen by two networks."""

    position: int
    """The row of the image in the test set."""
    label: int
    class_name: str
    image: Pixels
    attack: str
    threat: str
    kind: str
    """What the two networks do with the image, in words."""
    views: tuple[GalleryView, GalleryView]

    @property
    def factor(self) -> int:
        """The factor by which both perturbations are amplified: the largest that clips few values."""
        sizes = np.abs(np.stack([view.perturbation for view in self.views]))
        large = float(np.quantile(sizes, 1 - MAX_CLIPPED_SHARE))
        return max((factor for factor in FACTORS if factor * large <= 0.5), default=1)


@final
@dataclass(frozen=True, eq=False)
class Gallery:
    """Images to look at, and how they were chosen."""

    items: tuple[GalleryItem, ...]
    about: str


def overlay_map(image: Pixels, attention: FloatArray) -> Pixels:
    """Lay a map over the grey version of an image: dark violet where it is 0, yellow where it is 1."""
    if attention.shape != image.shape[:2]:
        raise InputError(
            f"map: got the shape {attention.shape}, expected that of the image {image.shape[:2]}"
        )
    colors = np.array([list(bytes.fromhex(color)) for color in MAP_COLORS.split()], dtype=np.float64)
    points = np.linspace(0, 1, len(colors))
    shares = np.clip(attention, 0, 1)
    heat = np.stack([np.interp(shares, points, colors[:, channel]) for channel in range(3)], axis=2)
    grey = image.mean(axis=2, keepdims=True)
    return np.rint(MAP_OPACITY * heat + (1 - MAP_OPACITY) * grey).astype(np.uint8)


def amplify_perturbation(perturbation: FloatArray, factor: int) -> Pixels:
    """A picture of a perturbation: grey where it is zero, lighter or darker by `factor` times its value."""
    return np.rint(255 * np.clip(0.5 + factor * perturbation, 0, 1)).astype(np.uint8)


def to_data_uri(pixels: Pixels, min_side: int = MIN_SIDE) -> str:
    """A picture as a PNG inside a data URI; every pixel of a small picture becomes a square of pixels."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        got = f"{pixels.dtype} of shape {pixels.shape}"
        raise InputError(f"picture: got {got}, expected uint8 of shape (height, width, 1 or 3)")
    scale = -(-min_side // min(pixels.shape[:2]))
    enlarged = pixels.repeat(max(scale, 1), axis=0).repeat(max(scale, 1), axis=1)
    file = io.BytesIO()
    Image.fromarray(enlarged[:, :, 0] if enlarged.shape[2] == 1 else enlarged).save(
        file, "PNG", optimize=True
    )
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
