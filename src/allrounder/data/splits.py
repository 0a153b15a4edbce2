"""Parts of a split in which every class has its share: a validation set, or a few images to measure on."""

from __future__ import annotations

import torch

from allrounder.data.base import Split, Subset
from allrounder.rng import Draws
from allrounder.types import Labels


def balanced(split: Split, count: int, seed: int) -> Labels:
    """The positions of `count` images of a split, every class with its share, up to rounding.

    With one seed, a smaller choice is the beginning of every larger one, in the same order.
    """
    if not 1 <= count <= len(split):
        raise ValueError(f"subset: got {count} of {len(split)} images, expected 1 to {len(split)}")
    return queue(split.labels, Draws(seed).at("subset").permutation(len(split)))[:count]


def hold_out(train: Split, count: int, draws: Draws) -> tuple[Split, Split]:
    """Cut a validation set from a training set: (the rest, the validation set).

    Every class gives the same share of its images, so a balanced set gives a balanced cut, up to one image.
    With the same draws, a smaller cut is part of every larger one.
    """
    if not 1 <= count < len(train):
        raise ValueError(
            f"hold out: got {count} of {len(train)} training images, expected 1 to {len(train) - 1}"
        )
    line = queue(train.labels, draws.at("hold-out").permutation(len(train)))
    return Subset(train, line[count:].sort().values), Subset(train, line[:count].sort().values)


def queue(labels: Labels, order: Labels) -> Labels:
    """Rearrange an order of all images so that every beginning of it holds the classes in their shares.

    The r-th of a class of s images, from 0 and in the given order, stands at (r + 1/2) / s of the way;
    the given order also decides between images that stand at the same place.
    """
    y = labels[order]
    sizes = torch.bincount(y)
    by_class = y.argsort(stable=True)
    rank = torch.empty_like(y)
    rank[by_class] = torch.arange(len(y)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return order[((rank.double() + 0.5) / sizes[y]).argsort(stable=True)]
