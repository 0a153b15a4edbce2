"""What training does to its images before anything else sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch.nn import functional as F

from allrounder.rng import Draws
from allrounder.types import Images
from allrounder.values import Flag, Whole, value


class Augment(ABC):
    """A random change of images that keeps their labels, shape, type and box."""

    @abstractmethod
    def apply(self, x: Images, draws: Draws) -> Images:
        """The changed images, contiguous; the given ones are left as they are."""


@final
@value
class CropFlip(Augment):
    """Pad with black, crop back to size at a random place, and mirror every other image on average."""

    pad: Whole = 4
    """Pixels added to each side."""
    flip: Flag = True
    """Mirror left to right with probability one half."""

    def apply(self, x: Images, draws: Draws) -> Images:
        """One place and one coin per image; pixels are only moved."""
        n, c, h, w = x.shape
        u = draws.uniform(torch.empty(n, 3, dtype=torch.float64))
        top, left = (u[:, :2] * (2 * self.pad + 1)).long().unbind(1)
        across = torch.arange(w).expand(n, w)
        if self.flip:
            across = torch.where(u[:, 2:] < 0.5, across.flip(1), across)
        rows, columns = top[:, None] + torch.arange(h), left[:, None] + across
        pixel = rows[:, :, None] * (w + 2 * self.pad) + columns[:, None, :]
        source = pixel.view(n, 1, h * w).to(x.device).expand(n, c, h * w)
        return F.pad(x, (self.pad,) * 4).flatten(2).gather(2, source).view(n, c, h, w)


@final
@value
class NoAugment(Augment):
    """Leave the images as they are."""

    def apply(self, x: Images, draws: Draws) -> Images:
        """The images themselves."""
        return x.contiguous()


AUGMENTS: dict[str, type[Augment]] = {"crop-flip": CropFlip, "none": NoAugment}
