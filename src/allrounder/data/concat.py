"""Two splits seen as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from allrounder.data.base import Expects, Split
from allrounder.types import Images, Labels


@final
@dataclass(frozen=True, eq=False)
class Joined:
    """The images of one split, then those of another of the same shape, without a copy of them."""

    first: Split
    second: Split

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def labels(self) -> Labels:
        """The labels of the first, then of the second."""
        return torch.cat([self.first.labels, self.second.labels])

    def fetch(self, index: Labels) -> Images:
        """The images at these positions, from where they are."""
        early = index < len(self.first)
        if bool(early.all()):
            return self.first.fetch(index)
        if not bool(early.any()):
            return self.second.fetch(index - len(self.first))
        one, two = self.first.fetch(index[early]), self.second.fetch(index[~early] - len(self.first))
        found = one.new_empty(len(index), *one.shape[1:])
        found[early], found[~early] = one, two
        return found

    def expect(self, index: Labels) -> None:
        """Hand it on to those that can prepare images."""
        early = index < len(self.first)
        for split, some in ((self.first, index[early]), (self.second, index[~early] - len(self.first))):
            if isinstance(split, Expects) and len(some):
                split.expect(some)
