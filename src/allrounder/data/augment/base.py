"""The interface of an augmentation, which changes a mini-batch before anything else uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, final

from typing_extensions import override

from allrounder.config.fields import frozen_config
from allrounder.rng import Rng
from allrounder.types import Batch, Images


class Augment(ABC):
    """A random change of a mini-batch that keeps the shape and dtype of the images and stays in [0, 1].

    All random numbers are drawn in one block on the CPU, so every device applies the same change.
    """

    mixes_labels: ClassVar[bool] = False
    """Whether labels are mixed as well as images."""

    @abstractmethod
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        """Return the augmented batch with contiguous images; the input is not modified."""


class ImageAugment(Augment):
    """An augmentation that changes every image independently and keeps its label."""

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        return replace(batch, x=self.augment_images(batch.x, rng))

    @abstractmethod
    def augment_images(self, x: Images, rng: Rng) -> Images:
        """Return augmented, contiguous images; the input is not modified."""


@final
@frozen_config
class NoAugment(ImageAugment):
    """Leave the images unchanged."""

    @override
    def augment_images(self, x: Images, rng: Rng) -> Images:
        return x.contiguous()
