"""The interface of an augmentation, which changes a mini-batch before anything else uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, TypeAlias, final

from typing_extensions import override

from allrounder.config.fields import NonEmpty, OneOf, frozen_config, raise_field_errors
from allrounder.config.time import Clock
from allrounder.data.streaming.decode import Crops
from allrounder.rng import Rng
from allrounder.types import Batch, Images

Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""


class Augment(ABC):
    """A random change of a mini-batch that keeps the shape and dtype of the images and stays in [0, 1].

    One that begins with a random crop describes it in `draw_crops`, so that it is cut from whole images, if
    there are any, before they are resized. `apply` then gets the crops, and the batch says so.

    All random numbers are drawn in one block on the CPU, so every device applies the same change.
    """

    mixes_labels: ClassVar[bool] = False
    """Whether labels are mixed as well as images."""

    @property
    def sides(self) -> tuple[int, ...]:
        """The smallest and the largest side, in any order, of the square images that it makes; empty if it
        keeps the size."""
        return ()

    @abstractmethod
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        """Return the augmented batch with contiguous images; the input is not modified."""

    def crop_size(self, size: Size, t: int, clock: Clock) -> Size:
        """Return the size of the crops of step t, by default the `size` of the images."""
        return size

    def draw_crops(self, count: int, size: Size, rng: Rng) -> Crops | None:
        """Draw the random crops that the augmentation of `count` images begins with, from the same address as
        `apply`; None if it begins otherwise."""
        return None


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


def _step_kinds() -> Mapping[str, type[Augment]]:
    """Return the table of augmentations without `Chain`; looked up late, because the table holds `Chain`."""
    from allrounder.data.augment import AUGMENTS

    return {kind: cls for kind, cls in AUGMENTS.items() if cls is not Chain}


@final
@frozen_config
class Chain(Augment):
    """Apply several augmentations in order; only the last one may mix labels."""

    steps: Annotated[tuple[Annotated[Augment, OneOf(_step_kinds)], ...], NonEmpty]
    """The augmentations to apply; chains cannot be nested."""

    def __post_init__(self) -> None:
        # A later step could move, cover or mix pixels again, and the label weights would no longer match.
        problems = [
            (("steps", i), f"{type(step).__name__} mixes labels, so it must be the last step; move it")
            for i, step in enumerate(self.steps[:-1])
            if step.mixes_labels
        ]
        problems += [
            (("steps", i), f"{type(step).__name__} with a size must be the first step; move it")
            for i, step in enumerate(self.steps[1:], 1)
            if step.sides
        ]
        raise_field_errors(self, problems)

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        for i, step in enumerate(self.steps):
            batch = step.apply(batch, rng.fold_in("step", i))
        return batch

    @property
    @override
    def sides(self) -> tuple[int, ...]:
        return self.steps[0].sides

    @override
    def crop_size(self, size: Size, t: int, clock: Clock) -> Size:
        return self.steps[0].crop_size(size, t, clock)

    @override
    def draw_crops(self, count: int, size: Size, rng: Rng) -> Crops | None:
        return self.steps[0].draw_crops(count, size, rng.fold_in("step", 0))
