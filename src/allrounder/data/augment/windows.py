"""Augmentations that replace a random rectangle of every image: by black, or by another image."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from allrounder.config.fields import NonNegativeInt, PositiveFloat, Share, frozen_config
from allrounder.data.augment.base import Augment, ImageAugment
from allrounder.data.augment.mixup import symmetric_beta
from allrounder.rng import Rng
from allrounder.types import Batch, Images


@final
@frozen_config
class Cutout(ImageAugment):
    """Set a square around a random pixel to black, clipped to the image.

    DeVries and Taylor, 2017, Improved regularization of convolutional neural networks with Cutout.
    """

    size: NonNegativeInt = 16
    """Side of the square in pixels."""

    @override
    def augment_images(self, x: Images, rng: Rng) -> Images:
        n, _, h, w = x.shape
        sides = torch.full((n,), self.size)
        hole = window_mask(h, w, rng.uniform(torch.empty(n, 2, dtype=torch.float64)), sides, sides)
        return x.masked_fill(hole[:, None].to(x.device), 0).contiguous()


@final
@frozen_config
class CutMix(Augment):
    """Paste a rectangle of another image of the batch into every image, and mix the labels by area.

    Yun et al., 2019, CutMix: regularization strategy to train strong classifiers with localizable features;
    with one rectangle per image. Its area is drawn from Beta(alpha, alpha), its centre is any pixel, and it
    is clipped to the image.
    """

    mixes_labels: ClassVar[bool] = True

    alpha: PositiveFloat = 1.0
    """The share of the area before clipping is drawn from Beta(alpha, alpha): uniform for 1."""
    chance: Share = 1.0
    """Probability that an image is mixed."""

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        n, _, h, w = batch.x.shape
        u = rng.uniform(torch.empty(n, 6, dtype=torch.float64))
        side = symmetric_beta(self.alpha, u[:, 1], u[:, 2]).sqrt()
        window = window_mask(h, w, u[:, 3:5], (h * side).long(), (w * side).long())
        window &= (u[:, 5] < self.chance)[:, None, None]
        # If the rectangle covers more than half, the partner fills the rest instead.
        replaced = window ^ (2 * window.sum((1, 2)) > h * w)[:, None, None]
        weight = (1 - replaced.sum((1, 2)) / (h * w)).to(batch.x.device, batch.x.dtype)
        partner = u[:, 0].argsort(stable=True).to(batch.x.device)
        x = torch.where(replaced[:, None].to(batch.x.device), batch.x[partner], batch.x).contiguous()
        return replace(batch, x=x, partner=batch.y[partner.to(batch.y.device)], weight=weight)


def window_mask(h: int, w: int, centre: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """Return which pixels of each image lie in its rectangle, (n, h, w), clipped to the image. Two uniform
    numbers per image choose the `centre` pixel; the larger half of an even side lies before it."""
    rows = _interval_mask(h, centre[:, 0], heights)
    columns = _interval_mask(w, centre[:, 1], widths)
    return rows[:, :, None] & columns[:, None, :]


def _interval_mask(size: int, centre: Tensor, length: Tensor) -> Tensor:
    """Return which positions of a side lie in each interval, (n, size)."""
    first = ((centre * size).long() - length // 2)[:, None]
    position = torch.arange(size)
    return (position >= first) & (position < first + length[:, None])
