"""Augmentations that mix every image with another one of its batch, and the labels in the same proportion.

Every image of the batch is the larger part of one mixed image, which keeps the image's label and index and
also gets the label of its partner. Attacks and the training accuracy need one label: they use that of the
larger part. Pairs are random, so mixed images have the published distribution, where either image may be the
larger part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from allrounder.config.fields import PositiveFloat, Share, frozen_config
from allrounder.data.augment.base import Augment
from allrounder.rng import Rng
from allrounder.types import Batch


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


def symmetric_beta(alpha: float, u: Tensor, v: Tensor) -> Tensor:
    """Sample Beta(alpha, alpha) from two independent uniform numbers, for any alpha > 0.

    Computes 1/2 + T / (2 sqrt(2 alpha + T^2)), where T has the t-distribution with 2 alpha degrees of
    freedom. The polar method gives T^2 = 2 alpha (u^(-1/alpha) - 1) cos^2(2 pi v): Bailey, 1994, Polar
    generation of random variates with the t-distribution.
    """
    cos = (2 * math.pi * v).cos()
    squared = torch.expm1(-u.log() / alpha) * cos.square()
    return 0.5 + 0.5 * cos.sign() / (1 + 1 / squared).sqrt()
