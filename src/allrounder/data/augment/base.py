"""The interface of an augmentation, which changes a mini-batch before anything else uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, final

from typing_extensions import override

from allrounder.config.fields import NonEmpty, OneOf, frozen_config, raise_field_errors
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
        raise_field_errors(self, problems)

    @override
    def apply(self, batch: Batch, rng: Rng) -> Batch:
        for i, step in enumerate(self.steps):
            batch = step.apply(batch, rng.fold_in("step", i))
        return batch
