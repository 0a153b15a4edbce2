"""Augmentations that move the pixels of an image: random crops and horizontal flips."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, cast, final

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from allrounder.config.fields import Flag, NonNegativeInt, PositiveFloat, frozen_config, raise_field_errors
from allrounder.config.schedules import OptionalImageSize
from allrounder.config.time import Clock
from allrounder.data.augment.base import ImageAugment, Size
from allrounder.data.streaming.decode import DRAWS_PER_CROP, Crops
from allrounder.rng import Rng
from allrounder.types import Batch, Images

PositiveShare = Annotated[PositiveFloat, Field(le=1)]


@final
@frozen_config
class CropFlip(ImageAugment):
    """Pad, crop back to size at a random position, and flip horizontally with probability one half."""

    pad: NonNegativeInt = 4
    """Pixels added to each side."""
    flip: Flag = True
    """Flip left to right with probability one half."""
    padding: Literal["zero", "reflect"] = "zero"
    """Padding mode: black, or the image reflected at its border, which must be larger than `pad`."""

    @override
    def augment_images(self, x: Images, rng: Rng) -> Images:
        n, c, h, w = x.shape
        u = rng.uniform(torch.empty(n, 3, dtype=torch.float64))
        top, left = (u[:, :2] * (2 * self.pad + 1)).long().unbind(1)
        order = torch.arange(w).expand(n, w)
        if self.flip:
            order = torch.where(u[:, 2:] < 0.5, order.flip(1), order)
        rows, columns = top[:, None] + torch.arange(h), left[:, None] + order
        if self.padding == "reflect":
            rows, columns = self._reflect(rows, h), self._reflect(columns, w)
        else:
            x = F.pad(x, (self.pad,) * 4)
        index = rows[:, :, None] * x.shape[3] + columns[:, None, :]
        source = index.view(n, 1, h * w).to(x.device).expand(n, c, h * w)
        return x.flatten(2).gather(2, source).view(n, c, h, w)

    def _reflect(self, position: Tensor, size: int) -> Tensor:
        """Map positions in the padded image to positions in the image, without repeating the border."""
        if self.pad >= size:
            raise ValueError(
                f"crop-flip: got pad {self.pad} for images of {size} pixels, expected less than {size} with "
                'padding "reflect"; choose a smaller pad, or padding "zero"'
            )
        reflected = (position - self.pad).abs()
        return (size - 1) - ((size - 1) - reflected).abs()


@final
@frozen_config
class ResizedCrop(ImageAugment):
    """Crop a random part of an image, resize it to the image size, and flip with probability one half.

    Images that are decoded from files are cropped from the whole image, before any resizing, as is usual for
    ImageNet: whole pixels, drawn again if the part does not fit, resized with antialiasing.

    Images in memory are cropped as they are: the position is not limited to whole pixels, sides longer than
    the image are clipped to it, and resizing is bilinear. A crop is never larger than the image, so resizing
    never shrinks and needs no antialiasing. With a `size` other than theirs, they are cropped as files are.
    """

    scale: tuple[PositiveShare, PositiveShare] = (0.25, 1.0)
    """Smallest and largest area of the crop, as a share of the image; uniform between them."""
    ratio: tuple[PositiveFloat, PositiveFloat] = (0.75, 4 / 3)
    """Smallest and largest aspect ratio (width / height) of the crop, relative to that of the resized crop;
    log-uniform between them."""
    flip: Flag = True
    """Flip left to right with probability one half."""
    size: OptionalImageSize = None
    """Height and width of the crops in pixels, by default those of the data. A schedule, evaluated at the end
    of every epoch, trains on images that grow; the network must accept every size. Evaluation and validation
    use the size of the data."""

    def __post_init__(self) -> None:
        problems = [
            ((name,), f"got {low:g} and {high:g}, expected the smaller number first; swap them")
            for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio))
            if low > high
        ]
        raise_field_errors(self, problems)

    @property
    @override
    def sides(self) -> tuple[int, ...]:
        return () if self.size is None else tuple(round(side) for side in self.size.bounds())

    @override
    def crop_size(self, size: Size, t: int, clock: Clock) -> Size:
        if self.size is None:
            return size
        side = round(self.size(clock.epoch(t) * clock.steps_per_epoch, clock))
        return side, side

    @override
    def draw_crops(self, count: int, size: Size, rng: Rng) -> Crops:
        draws = rng.uniform(torch.empty(count, DRAWS_PER_CROP, dtype=torch.float64))
        rows = cast(list[list[float]], draws.tolist())
        return Crops(*size, self.scale, self.ratio, self.flip, tuple(map(tuple, rows)))

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        return replace(batch, is_cropped=False) if batch.is_cropped else super().apply(batch, rng)

    @override
    def augment_images(self, x: Images, rng: Rng) -> Images:
        n, _, h, w = x.shape
        u = rng.uniform(torch.empty(n, 5, dtype=torch.float64))
        area = self.scale[0] + u[:, 0] * (self.scale[1] - self.scale[0])
        low, high = (torch.tensor(end, dtype=torch.float64).log() for end in self.ratio)
        aspect = (low + u[:, 1] * (high - low)).exp()
        rows = _source_coordinates(h, (area / aspect).sqrt().clamp(max=1), u[:, 2])
        columns = _source_coordinates(w, (area * aspect).sqrt().clamp(max=1), u[:, 3])
        if self.flip:
            columns = torch.where(u[:, 4:] < 0.5, columns.flip(1), columns)
        x = _interpolate_rows(_interpolate_rows(x, rows).transpose(2, 3), columns).transpose(2, 3)
        return x.contiguous().clamp_(0, 1)


def _source_coordinates(size: int, length: Tensor, position: Tensor) -> Tensor:
    """Return the coordinate that each output pixel is read from, clamped to the image; `length` and
    `position` of the crop are fractions of the side, and pixel centres have integer coordinates."""
    centres = torch.arange(size, dtype=torch.float64) + 0.5
    first = position * (1 - length) * size
    return (first[:, None] + centres * length[:, None] - 0.5).clamp(0, size - 1)


def _interpolate_rows(x: Images, source: Tensor) -> Images:
    """Read the rows of every image at fractional coordinates, by linear interpolation."""
    n, c, h, w = x.shape
    low = source.floor().long()
    weight = (source - low)[:, None, :, None].to(x.device, x.dtype)
    # Copies whole rows, which is much faster than gathering single pixels.
    rows = x.reshape(n * c * h, w)
    first = torch.arange(n * c).view(n, c, 1) * h
    upper, lower = (
        rows.index_select(0, (first + row[:, None]).flatten().to(x.device)).view(n, c, h, w)
        for row in (low, (low + 1).clamp(max=h - 1))
    )
    return torch.lerp(upper, lower, weight)
