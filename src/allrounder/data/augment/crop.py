"""Augmentations that move the pixels of an image: crops and mirrors."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from allrounder.config.fields import Flag, Positive, Whole, refuse, value
from allrounder.data.augment.base import ImageAugment
from allrounder.rng import Draws
from allrounder.types import Images

Part = Annotated[Positive, Field(le=1)]


@final
@value
class CropFlip(ImageAugment):
    """Pad, crop back to size at a random place, and mirror every other image on average."""

    pad: Whole = 4
    """Pixels added to each side."""
    flip: Flag = True
    """Mirror left to right with probability one half."""
    # Left out of recipes where it is zero: those from before it keep their fingerprint.
    padding: Annotated[
        Literal["zero", "reflect"], Field(exclude_if=lambda padding: padding == "zero")  # pyright: ignore[reportUnknownLambdaType]
    ] = "zero"
    """What is added: black, or the image mirrored at its border, which takes images larger than `pad`."""

    def images(self, x: Images, draws: Draws) -> Images:
        """One place and one coin per image; pixels are only moved."""
        n, c, h, w = x.shape
        u = draws.uniform(torch.empty(n, 3, dtype=torch.float64))
        top, left = (u[:, :2] * (2 * self.pad + 1)).long().unbind(1)
        across = torch.arange(w).expand(n, w)
        if self.flip:
            across = torch.where(u[:, 2:] < 0.5, across.flip(1), across)
        rows, columns = top[:, None] + torch.arange(h), left[:, None] + across
        if self.padding == "reflect":
            rows, columns = (self._reflected(rows, h), self._reflected(columns, w))
            pixel = rows[:, :, None] * w + columns[:, None, :]
        else:
            pixel = rows[:, :, None] * (w + 2 * self.pad) + columns[:, None, :]
            x = F.pad(x, (self.pad,) * 4)
        source = pixel.view(n, 1, h * w).to(x.device).expand(n, c, h * w)
        return x.flatten(2).gather(2, source).view(n, c, h, w)

    def _reflected(self, place: Tensor, size: int) -> Tensor:
        """Places in the padded image as places in the image; the border itself does not come twice."""
        if self.pad >= size:
            raise ValueError(
                f"crop-flip: got pad {self.pad} for images of {size} pixels, expected less than {size} with "
                'padding "reflect"; choose a smaller pad, or padding "zero"'
            )
        inside = (place - self.pad).abs()
        return (size - 1) - ((size - 1) - inside).abs()


@final
@value
class ResizedCrop(ImageAugment):
    """Crop a random part of an image, stretch it back to size, and mirror every other image on average.

    The share of the area is uniform in `scale`, the aspect log-uniform in `ratio`, the place uniform; places
    need not be whole pixels. Pixels are interpolated between their four neighbours. A part is never larger
    than the image, so nothing is ever shrunk and there is nothing to smooth first (antialiasing).
    """

    scale: tuple[Part, Part] = (0.25, 1.0)
    """The smallest and the largest share of the area."""
    ratio: tuple[Positive, Positive] = (0.75, 4 / 3)
    """The smallest and the largest aspect, width by height, relative to the image's own; a side that would
    be longer than the image's is as long."""
    flip: Flag = True
    """Mirror left to right with probability one half."""

    def __post_init__(self) -> None:
        refuse(
            self,
            [
                ((name,), f"expected the smaller one first, got {low:g} and {high:g}")
                for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio))
                if low > high
            ],
        )

    def images(self, x: Images, draws: Draws) -> Images:
        """One part and one coin per image; rows are interpolated first, then columns."""
        n, _, h, w = x.shape
        u = draws.uniform(torch.empty(n, 5, dtype=torch.float64))
        area = self.scale[0] + u[:, 0] * (self.scale[1] - self.scale[0])
        low, high = (torch.tensor(end, dtype=torch.float64).log() for end in self.ratio)
        aspect = (low + u[:, 1] * (high - low)).exp()
        down = _sources(h, (area / aspect).sqrt().clamp(max=1), u[:, 2])
        across = _sources(w, (area * aspect).sqrt().clamp(max=1), u[:, 3])
        if self.flip:
            across = torch.where(u[:, 4:] < 0.5, across.flip(1), across)
        x = _rows_at(_rows_at(x, down).transpose(2, 3), across).transpose(2, 3)
        return x.contiguous().clamp_(0, 1)


def _sources(size: int, side: Tensor, place: Tensor) -> Tensor:
    """Where each pixel of a side comes from, pixels being at whole numbers; at most the outermost ones."""
    centres = torch.arange(size, dtype=torch.float64) + 0.5
    first = place * (1 - side) * size
    return (first[:, None] + centres * side[:, None] - 0.5).clamp(0, size - 1)


def _rows_at(x: Images, source: Tensor) -> Images:
    """The images with their rows read at other places: between two rows, both in proportion."""
    n, c, h, w = x.shape
    low = source.floor().long()
    share = (source - low)[:, None, :, None].to(x.device, x.dtype)
    # Whole rows are copied, which is much faster than gathering single pixels.
    rows, first = x.reshape(n * c * h, w), torch.arange(n * c).view(n, c, 1) * h
    near, far = (
        rows.index_select(0, (first + row[:, None]).flatten().to(x.device)).view(n, c, h, w)
        for row in (low, (low + 1).clamp(max=h - 1))
    )
    return torch.lerp(near, far, share)
