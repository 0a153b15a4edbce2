"""Augmentations that change the colours of an image, or cover a part of it."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import Number, Whole, value
from allrounder.data.augment.base import ImageAugment
from allrounder.data.augment.windows import inside
from allrounder.rng import Draws
from allrounder.types import Images

Spread = Annotated[Number, Field(ge=0)]
LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue look (ITU-R BT.601)."""


@final
@value
class Cutout(ImageAugment):
    """Blacken a square around a random pixel; what lies outside of the image is lost.

    DeVries and Taylor, 2017, Improved regularization of convolutional neural networks with Cutout.
    """

    size: Whole = 16
    """The side of the square in pixels."""

    def images(self, x: Images, draws: Draws) -> Images:
        """One square per image."""
        n, _, h, w = x.shape
        centre = draws.uniform(torch.empty(n, 2, dtype=torch.float64))
        sides = torch.full((n,), self.size)
        hole = inside(h, w, centre, sides, sides)
        return x.masked_fill(hole[:, None].to(x.device), 0).contiguous()


@final
@value
class ColourJitter(ImageAugment):
    """Change brightness, contrast, saturation and hue of every image by random amounts, in this order.

    Each of the first three is a factor uniform in [1 - field, 1 + field], at least 0; the hue is turned by an
    angle about the grey axis. Colours are clipped to [0, 1] after each. Grey images (one channel) have
    neither saturation nor hue.
    """

    brightness: Spread = 0.1
    """Scales all colours."""
    contrast: Spread = 0.1
    """Scales the distance from the mean brightness of the image."""
    saturation: Spread = 0.1
    """Scales the distance from the pixel's own grey."""
    hue: Annotated[Number, Field(ge=0, le=0.5)] = 0.0
    """The largest turn to either side, in whole turns."""

    def images(self, x: Images, draws: Draws) -> Images:
        """Four amounts per image."""
        n, c = x.shape[:2]
        if c not in (1, 3):
            raise ValueError(
                f"colour-jitter: got images of {c} channels, expected 1 (grey) or 3 (red, green, blue); "
                "choose another augmentation"
            )
        u = draws.uniform(torch.empty(n, 4, dtype=torch.float64))
        spread = torch.tensor([self.brightness, self.contrast, self.saturation], dtype=torch.float64)
        low = (1 - spread).clamp(min=0)
        factors = low + u[:, :3] * (1 + spread - low)
        bright, contrast, saturation = factors.to(x.device, x.dtype).view(n, 3, 1, 1, 1).unbind(1)
        x = (x.contiguous() * bright).clamp_(0, 1)
        if self.contrast > 0:
            x = _towards(x, _grey(x).mean((2, 3), keepdim=True), contrast)
        if c == 3 and self.saturation > 0:
            x = _towards(x, _grey(x), saturation)
        if c == 3 and self.hue > 0:
            x = _turned(x, (2 * u[:, 3] - 1) * (2 * math.pi * self.hue))
        return x


def _grey(x: Images) -> Tensor:
    if x.shape[1] == 1:
        return x
    red, green, blue = (x[:, k : k + 1] for k in range(3))
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _towards(x: Images, grey: Tensor, factor: Tensor) -> Images:
    # Written so that a factor of one gives x to the bit.
    return (factor * x + (1 - factor) * grey).clamp_(0, 1)


def _turned(x: Images, angle: Tensor) -> Images:
    """Colours turned about the grey axis (Rodrigues' formula); an angle of zero gives x to the bit."""
    cos, sin = (part.to(x.device, x.dtype).view(-1, 1, 1, 1) for part in (angle.cos(), angle.sin()))
    mean = x.mean(1, keepdim=True)
    red, green, blue = (x[:, k : k + 1] for k in range(3))
    across = torch.cat([blue - green, red - blue, green - red], dim=1) / math.sqrt(3)
    return (cos * x + (1 - cos) * mean + sin * across).clamp_(0, 1)
