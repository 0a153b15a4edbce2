"""Augmentations that mix every image with another one of its batch, and their labels in the same proportion.

Every image of the batch is the larger part of one mixed image, which keeps its label and index and gets the
label of its partner besides. Attacks need one label: they take that of the larger part, and so does the
training accuracy. The pair is a random one, so a mixed image is distributed as published, where either may be
the larger part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor

from allrounder.config.fields import Positive, Share, value
from allrounder.data.augment.base import Augment
from allrounder.data.augment.windows import inside
from allrounder.rng import Draws
from allrounder.types import Batch


@final
@value
class Mixup(Augment):
    """Blend every image with another one of the batch, and their labels with the same weights.

    Zhang et al., 2018, mixup: beyond empirical risk minimization; with a weight drawn for every image.
    """

    mixes: ClassVar[bool] = True

    alpha: Positive = 1.0
    """The weight is drawn from Beta(alpha, alpha): near 0 or 1 where it is small, uniform at 1."""
    chance: Share = 1.0
    """The share of the images that are mixed, on average."""

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Blend with a weight of at least one half."""
        u = draws.uniform(torch.empty(len(batch), 4, dtype=torch.float64))
        weight = symmetric_beta(self.alpha, u[:, 1], u[:, 2])
        weight = torch.maximum(weight, 1 - weight)
        weight = torch.where(u[:, 3] < self.chance, weight, torch.ones_like(weight))
        partner = u[:, 0].argsort(stable=True).to(batch.x.device)
        # Rounded first, so that images and labels are mixed with the same weights.
        shown = weight.to(batch.x.device, batch.x.dtype)
        of_own = shown[:, None, None, None]
        x = (of_own * batch.x + (1 - of_own) * batch.x[partner]).clamp_(0, 1).contiguous()
        return replace(batch, x=x, partner=batch.y[partner.to(batch.y.device)], weight=shown)


@final
@value
class CutMix(Augment):
    """Put a rectangle of another image of the batch into every image, and mix the labels by area.

    Yun et al., 2019, CutMix: regularization strategy to train strong classifiers with localizable features;
    with a rectangle drawn for every image. Its area is drawn from Beta(alpha, alpha), its centre is any
    pixel, and what lies outside of the image is lost.
    """

    mixes: ClassVar[bool] = True

    alpha: Positive = 1.0
    """The share of the area, before some of it is lost, is uniform at 1."""
    chance: Share = 1.0
    """The share of the images that are mixed, on average."""

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Where the rectangle is more than half of the image, it is kept and the other fills the frame."""
        n, _, h, w = batch.x.shape
        u = draws.uniform(torch.empty(n, 6, dtype=torch.float64))
        side = symmetric_beta(self.alpha, u[:, 1], u[:, 2]).sqrt()
        window = inside(h, w, u[:, 3:5], (h * side).long(), (w * side).long())
        window &= (u[:, 5] < self.chance)[:, None, None]
        count = window.sum((1, 2))
        other = window ^ (2 * count > h * w)[:, None, None]
        weight = 1 - other.sum((1, 2)) / (h * w)
        partner, where = u[:, 0].argsort(stable=True).to(batch.x.device), other[:, None].to(batch.x.device)
        x = torch.where(where, batch.x[partner], batch.x).contiguous()
        return replace(
            batch, x=x, partner=batch.y[partner.to(batch.y.device)], weight=weight.to(x.device, x.dtype)
        )


def symmetric_beta(alpha: float, u: Tensor, v: Tensor) -> Tensor:
    """Beta(alpha, alpha) from two independent uniform numbers, for any alpha > 0.

    1/2 + T / (2 sqrt(2 alpha + T^2)) for a T of the t-distribution with 2 alpha degrees of freedom, which
    the polar method gives: T^2 = 2 alpha (u^(-1/alpha) - 1) cos^2(2 pi v). Bailey, 1994, Polar generation of
    random variates with the t-distribution.
    """
    cos = (2 * math.pi * v).cos()
    squared = torch.expm1(-u.log() / alpha) * cos.square()
    return 0.5 + 0.5 * cos.sign() / (1 + 1 / squared).sqrt()
