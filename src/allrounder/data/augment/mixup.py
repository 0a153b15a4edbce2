"""Augmentations that erase a part of every image, or mix it with another one of its batch.

Mixup and CutMix mix the labels in the same proportion. Every image of the batch is the larger part of one
mixed image, which keeps the image's label and index and also gets the label of its partner. Attacks and the
training accuracy need one label: they use that of the larger part. Pairs are random, so mixed images have the
published distribution, where either image may be the larger part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from allrounder.config.fields import NonNegativeInt, PositiveFloat, Share, frozen_config
from allrounder.data.augment.base import Augment, ImageAugment
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
class Mixup(Augment):
    """Interpolate every image with another one of the batch, and their labels with the same weights.

    Zhang et al., 2018, mixup: beyond empirical risk minimization; with one weight per image.
    """

    mixes_labels: ClassVar[bool] = True

    alpha: PositiveFloat = 1.0
    """The weight is drawn from Beta(alpha, alpha): uniform for 1, near 0 or 1 for small values."""
    chance: Share = 1.0
    """Probability that an image is mixed."""

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        u = rng.uniform(torch.empty(len(batch), 4, dtype=torch.float64))
        weight = symmetric_beta(self.alpha, u[:, 1], u[:, 2])
        weight = torch.maximum(weight, 1 - weight)
        weight = torch.where(u[:, 3] < self.chance, weight, torch.ones_like(weight))
        partner = u[:, 0].argsort(stable=True).to(batch.x.device)
        # Rounded to the dtype of the images first, so that images and labels are mixed with the same weights.
        weight = weight.to(batch.x.device, batch.x.dtype)
        image_weight = weight[:, None, None, None]
        x = (image_weight * batch.x + (1 - image_weight) * batch.x[partner]).clamp_(0, 1).contiguous()
        return replace(batch, x=x, partner=batch.y[partner.to(batch.y.device)], weight=weight)


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


def symmetric_beta(alpha: float, u: Tensor, v: Tensor) -> Tensor:
    """Sample Beta(alpha, alpha) from two independent uniform numbers, for any alpha > 0.

    Computes 1/2 + T / (2 sqrt(2 alpha + T^2)), where T has the t-distribution with 2 alpha degrees of
    freedom. The polar method gives T^2 = 2 alpha (u^(-1/alpha) - 1) cos^2(2 pi v): Bailey, 1994, Polar
    generation of random variates with the t-distribution.
    """
    cos = (2 * math.pi * v).cos()
    squared = torch.expm1(-u.log() / alpha) * cos.square()
    return 0.5 + 0.5 * cos.sign() / (1 + 1 / squared).sqrt()
