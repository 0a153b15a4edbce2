"""Images with other labels than their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from allrounder.data.base import Expects, Split
from allrounder.types import Images, Labels


@final
@dataclass(frozen=True, eq=False)
class Relabelled:
    """The images of a split, without a copy of them, under labels that somebody else gave."""

    whole: Split
    labels: Labels

    def __post_init__(self) -> None:
        assert self.labels.shape == (len(self.whole),), "a label for every image"

    def __len__(self) -> int:
        return len(self.whole)

    def fetch(self, index: Labels) -> Images:
        """The images at these positions."""
        return self.whole.fetch(index)

    def expect(self, index: Labels) -> None:
        """Hand it on to the split that has the images."""
        if isinstance(self.whole, Expects):
            self.whole.expect(index)
