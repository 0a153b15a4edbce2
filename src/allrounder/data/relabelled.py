"""A split with other labels, such as pseudo-labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from allrounder.data.base import Prefetchable, Split
from allrounder.types import Images, Labels


@final
@dataclass(frozen=True, eq=False)
class Relabelled:
    """The images of a split with the given labels in place of its own; nothing is copied."""

    split: Split
    labels: Labels

    def __post_init__(self) -> None:
        assert self.labels.shape == (len(self.split),), "one label for each image"

    def __len__(self) -> int:
        return len(self.split)

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions."""
        return self.split.fetch(index)

    def prefetch(self, index: Labels) -> None:
        """Forward to the underlying split, if it can prefetch."""
        if isinstance(self.split, Prefetchable):
            self.split.prefetch(index)
