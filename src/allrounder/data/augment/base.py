"""What training does to a mini-batch before anything else sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, final

from allrounder.config.fields import value
from allrounder.rng import Draws
from allrounder.types import Batch, Images


class Augment(ABC):
    """A random change of a mini-batch that keeps the shape, type and box of its images.

    All that is random about it is drawn in one block on the CPU, so that every device sees the same change.
    """

    mixes: ClassVar[bool] = False
    """Whether it mixes labels too."""

    @abstractmethod
    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """The changed batch, its images contiguous; the given one is left as it is."""


class ImageAugment(Augment):
    """A random change of every image by itself, which keeps its label."""

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """The batch with other images."""
        return replace(batch, x=self.images(batch.x, draws))

    @abstractmethod
    def images(self, x: Images, draws: Draws) -> Images:
        """The changed images, contiguous; the given ones are left as they are."""


@final
@value
class NoAugment(ImageAugment):
    """Leave the images as they are."""

    def images(self, x: Images, draws: Draws) -> Images:
        """The images themselves."""
        return x.contiguous()
