"""Splits made from others: concatenated, with other labels, and stratified parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from allrounder.data.base import Split, Subset, prefetch
from allrounder.errors import DataError
from allrounder.rng import Rng
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
        second = self.second.fetch(index[~in_first] - len(self.first))
        if len(second) == len(index):
            return second
        x = second.new_empty(len(index), *second.shape[1:])
        x[in_first], x[~in_first] = self.first.fetch(index[in_first]), second
        return x

    def prefetch(self, index: Labels) -> None:
        """Forward to the splits that can prefetch."""
        in_first = index < len(self.first)
        for split, part in ((self.first, index[in_first]), (self.second, index[~in_first] - len(self.first))):
            if len(part):
                prefetch(split, part)


@final
@dataclass(frozen=True, eq=False)
class Relabelled:
    """The images of a split with the given labels, such as pseudo-labels; nothing is copied."""

    split: Split
    labels: Labels

    def __post_init__(self) -> None:
        assert self.labels.shape == (len(self.split),), "one label for each image"

    def __len__(self) -> int:
        return len(self.split)

    def __repr__(self) -> str:
        return f"Relabelled({self.split})"

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions."""
        return self.split.fetch(index)

    def prefetch(self, index: Labels) -> None:
        """Forward to the underlying split, if it can prefetch."""
        prefetch(self.split, index)


def stratified_indices(split: Split, count: int, seed: int) -> Labels:
    """Sample `count` positions with the class proportions of the split; a prefix of every larger sample."""
    if not 1 <= count <= len(split):
        raise DataError(f"subset: got {count} of {len(split)} images, expected 1 to {len(split)}")
    return sample_stratified(split, count, Rng(seed).fold_in("subset"))


def sample_stratified(split: Split, count: int, rng: Rng) -> Labels:
    """Sample `count` positions of a split by class; with the same `rng`, a prefix of every larger sample."""
    return stratified_order(split.labels, rng.permutation(len(split)))[:count]


def hold_out(train: Split, count: int, rng: Rng) -> tuple[Split, Split]:
    """Split a training set into (remaining images, `count` held-out images).

    Every class gives the same fraction of its images, up to one image. With the same `rng`, a smaller
    held-out set is contained in every larger one.
    """
    if not 1 <= count < len(train):
        total = len(train)
        raise DataError(f"hold out: got {count} of {total} training images, expected 1 to {total - 1}")
    order = stratified_order(train.labels, rng.fold_in("hold-out").permutation(len(train)))
    return Subset(train, order[count:].sort().values), Subset(train, order[:count].sort().values)


def stratified_order(labels: Labels, order: Labels) -> Labels:
    """Rearrange a permutation of all images so that every prefix has the class proportions of the whole.

    The r-th image (from 0, in the given order) of a class with s images is sorted by (r + 1/2) / s; the given
    order breaks ties.
    """
    y = labels[order]
    sizes = torch.bincount(y)
    by_class = y.argsort(stable=True)
    rank = torch.empty_like(y)
    rank[by_class] = torch.arange(len(y)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return order[((rank.double() + 0.5) / sizes[y]).argsort(stable=True)]
