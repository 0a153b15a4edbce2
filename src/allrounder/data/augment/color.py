"""Random changes of the colours of an image."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.config.fields import FiniteFloat, frozen_config
from allrounder.data.augment.base import ImageAugment
from allrounder.rng import Rng
from allrounder.types import Images

Spread = Annotated[FiniteFloat, Field(ge=0)]
LUMA = (0.299, 0.587, 0.114)
"""Perceived brightness of red, green and blue (ITU-R BT.601)."""


@final
@frozen_config
class ColorJitter(ImageAugment):
    """Change brightness, contrast, saturation and hue of every image at random, in this order.

    The first three are scaled by a factor uniform in [1 - field, 1 + field], at least 0; the hue is rotated
    about the grey axis. Colours are clipped to [0, 1] after each change. Grey images (one channel) have
    neither saturation nor hue.
    """

    brightness: Spread = 0.1
    """Range of the factor on all colours."""
    contrast: Spread = 0.1
    """Range of the factor on the distance from the mean brightness of the image."""
    saturation: Spread = 0.1
    """Range of the factor on the distance from the pixel's own grey."""
    hue: Annotated[FiniteFloat, Field(ge=0, le=0.5)] = 0.0
    """Largest rotation in either direction, in turns."""

    @override
    def augment_images(self, x: Images, rng: Rng) -> Images:
        n, c = x.shape[:2]
        if c not in (1, 3):
            raise ValueError(
                f"color-jitter: got images with {c} channels, expected 1 (grey) or 3 (red, green, blue); "
                "choose another augmentation"
            )
        u = rng.uniform(torch.empty(n, 4, dtype=torch.float64))
        spread = torch.tensor([self.brightness, self.contrast, self.saturation], dtype=torch.float64)
        low = (1 - spread).clamp(min=0)
        factors = low + u[:, :3] * (1 + spread - low)
        brightness, contrast, saturation = factors.to(x.device, x.dtype).view(n, 3, 1, 1, 1).unbind(1)
        x = (x.contiguous() * brightness).clamp_(0, 1)
        if self.contrast > 0:
            x = _blend(x, _luminance(x).mean((2, 3), keepdim=True), contrast)
        if c == 3 and self.saturation > 0:
            x = _blend(x, _luminance(x), saturation)
        if c == 3 and self.hue > 0:
            x = _rotate_hue(x, (2 * u[:, 3] - 1) * (2 * math.pi * self.hue))
        return x


def _luminance(x: Images) -> Tensor:
    """Return the brightness of every pixel, (n, 1, h, w)."""
    if x.shape[1] == 1:
        return x
    red, green, blue = (x[:, k : k + 1] for k in range(3))
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _blend(x: Images, grey: Tensor, factor: Tensor) -> Images:
    """Interpolate from `grey` to `x` and clip; written so that a factor of one returns x bit-for-bit."""
    return (factor * x + (1 - factor) * grey).clamp_(0, 1)


def _rotate_hue(x: Images, angle: Tensor) -> Images:
    """Rotate colours about the grey axis (Rodrigues' formula); an angle of zero returns x bit-for-bit."""
    cos, sin = (part.to(x.device, x.dtype).view(-1, 1, 1, 1) for part in (angle.cos(), angle.sin()))
    mean = x.mean(1, keepdim=True)
    red, green, blue = (x[:, k : k + 1] for k in range(3))
    across = torch.cat([blue - green, red - blue, green - red], dim=1) / math.sqrt(3)
    return (cos * x + (1 - cos) * mean + sin * across).clamp_(0, 1)
