"""Stratified parts of a split: a validation set, or a sample to evaluate on."""

from __future__ import annotations

import torch

from allrounder.data.base import Split, Subset
from allrounder.rng import Rng
from allrounder.types import Labels


def stratified_indices(split: Split, count: int, seed: int) -> Labels:
    """Sample the positions of `count` images with the class proportions of the split, up to rounding.

    With the same seed, a smaller sample is a prefix of every larger one.
    """
    if not 1 <= count <= len(split):
        raise ValueError(f"subset: got {count} of {len(split)} images, expected 1 to {len(split)}")
    return stratified_order(split.labels, Rng(seed).fold_in("subset").permutation(len(split)))[:count]


def hold_out(train: Split, count: int, rng: Rng) -> tuple[Split, Split]:
    """Split a training set into (remaining images, `count` held-out images).

    Every class gives the same fraction of its images, up to one image. With the same `rng`, a smaller
    held-out set is contained in every larger one.
    """
    if not 1 <= count < len(train):
        raise ValueError(
            f"hold out: got {count} of {len(train)} training images, expected 1 to {len(train) - 1}"
        )
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
