"""The concatenation of two splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from allrounder.data.base import Prefetchable, Split
from allrounder.types import Images, Labels


@final
@dataclass(frozen=True, eq=False)
class ConcatSplit:
    """The images of one split, then those of another of the same shape; nothing is copied."""

    first: Split
    second: Split

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def labels(self) -> Labels:
        """The labels of the first split, then those of the second."""
        return torch.cat([self.first.labels, self.second.labels])

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions."""
        in_first = index < len(self.first)
        if bool(in_first.all()):
            return self.first.fetch(index)
        if not bool(in_first.any()):
            return self.second.fetch(index - len(self.first))
        first = self.first.fetch(index[in_first])
        second = self.second.fetch(index[~in_first] - len(self.first))
        x = first.new_empty(len(index), *first.shape[1:])
        x[in_first] = first
        x[~in_first] = second
        return x

    def prefetch(self, index: Labels) -> None:
        """Forward to the splits that can prefetch."""
        in_first = index < len(self.first)
        for split, part in ((self.first, index[in_first]), (self.second, index[~in_first] - len(self.first))):
            if isinstance(split, Prefetchable) and len(part):
                split.prefetch(part)
