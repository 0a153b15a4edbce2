"""A chain of augmentations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

from allrounder.config.fields import NonEmpty, OneOf, frozen_config, raise_field_errors
from allrounder.data.augment.base import Augment
from allrounder.rng import Rng
from allrounder.types import Batch


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
        raise_field_errors(
            self,
            [
                (("steps", i), f"{type(step).__name__} mixes labels, so it must be the last step; move it")
                for i, step in enumerate(self.steps[:-1])
                if step.mixes_labels
            ],
        )

    def apply(self, batch: Batch, rng: Rng) -> Batch:
        """Apply the steps in order; step i draws its random numbers at the address ("step", i)."""
        for i, step in enumerate(self.steps):
            batch = step.apply(batch, rng.fold_in("step", i))
        return batch
