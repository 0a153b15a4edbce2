"""Several augmentations, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

from allrounder.config.fields import Kind, Some, refuse, value
from allrounder.data.augment.base import Augment
from allrounder.rng import Draws
from allrounder.types import Batch


def _table() -> Mapping[str, type[Augment]]:
    from allrounder.data.augment import AUGMENTS

    return {kind: cls for kind, cls in AUGMENTS.items() if cls is not Chain}


@final
@value
class Chain(Augment):
    """Apply several augmentations in their order; one that mixes labels is the last."""

    steps: Annotated[tuple[Annotated[Augment, Kind(_table)], ...], Some]
    """Any but another chain."""

    def __post_init__(self) -> None:
        # A step after it could move, cover or mix again what the weights of the labels tell.
        refuse(
            self,
            [
                (("steps", number), f"{type(step).__name__} mixes labels, so it must be the last; move it")
                for number, step in enumerate(self.steps[:-1])
                if step.mixes
            ],
        )

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Every step draws at its own number, from 0."""
        for number, step in enumerate(self.steps):
            batch = step.apply(batch, draws.at("step", number))
        return batch
