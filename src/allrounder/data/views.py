"""Views of the images of a batch: random crops of whole images, or the images as the dataset prepares them.

A crop is cut where the whole image is: for image files in the processes that decode them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from allrounder.data.base import Split, Subset, prefetch
from allrounder.data.splits import ConcatSplit, Relabelled
from allrounder.data.streaming.decode import Crops, to_chw
from allrounder.types import Images, Labels

View: TypeAlias = Crops | None
"""Random crops of whole images, one for each image of a batch; None for what `fetch` returns."""


@runtime_checkable
class ViewSource(Protocol):
    """A split that can cut crops from images that may be larger than those that `fetch` returns."""

    def fetch_views(self, index: Labels, views: Sequence[View]) -> list[Tensor]:
        """Return views of the images at these positions, each a batch as `fetch` returns one."""
        ...

    def prefetch_views(self, index: Labels, views: Sequence[View]) -> None:
        """Start preparing views of the images at these positions. It does not change what is fetched."""
        ...


def has_whole_images(split: Split) -> bool:
    """Whether crops of a split, or of a part of it, are cut from whole images."""
    if isinstance(split, ConcatSplit):
        return has_whole_images(split.first) or has_whole_images(split.second)
    return (
        has_whole_images(split.split)
        if isinstance(split, Subset | Relabelled)
        else isinstance(split, ViewSource)
    )


def fetch_views(split: Split, index: Labels, views: Sequence[View]) -> list[Tensor]:
    """Return views of the images at these positions. Crops of images in memory are cut from what `fetch`
    returns, rounded to 8 bits."""
    if tuple(views) == (None,):
        return [split.fetch(index)]
    if isinstance(split, ViewSource):
        return split.fetch_views(index, views)
    if isinstance(split, Subset):
        return fetch_views(split.split, split.index[index], views)
    if isinstance(split, Relabelled):
        return fetch_views(split.split, index, views)
    if isinstance(split, ConcatSplit):
        return _fetch_parts(split, index, views)
    x = split.fetch(index)
    return [x if view is None else _cut_crops(x, view) for view in views]


def prefetch_views(split: Split, index: Labels, views: Sequence[View]) -> None:
    """Start preparing views of the images at these positions, if the split can prefetch."""
    if tuple(views) == (None,):
        prefetch(split, index)
    elif isinstance(split, ViewSource):
        split.prefetch_views(index, views)
    elif isinstance(split, Subset):
        prefetch_views(split.split, split.index[index], views)
    elif isinstance(split, Relabelled):
        prefetch_views(split.split, index, views)
    elif isinstance(split, ConcatSplit):
        for part, rows, positions in _locate(split, index):
            prefetch_views(part, positions, _select(views, rows))


def _fetch_parts(split: ConcatSplit, index: Labels, views: Sequence[View]) -> list[Tensor]:
    merged: list[Tensor] = []
    for part, rows, positions in _locate(split, index):
        seen = fetch_views(part, positions, _select(views, rows))
        merged = merged or [x.new_empty(len(index), *x.shape[1:]) for x in seen]
        for target, x in zip(merged, seen, strict=True):
            target[rows] = x
    return merged


def _locate(split: ConcatSplit, index: Labels) -> list[tuple[Split, Tensor, Tensor]]:
    """For each part that has some of these images: the part, their rows in the batch, and their positions."""
    in_first = index < len(split.first)
    parts = (split.first, in_first, index), (split.second, ~in_first, index - len(split.first))
    return [(part, mask.nonzero()[:, 0], at[mask]) for part, mask, at in parts if bool(mask.any())]


def _select(views: Sequence[View], rows: Tensor) -> list[View]:
    numbers = cast(list[int], rows.tolist())
    return [None if view is None else view.select(numbers) for view in views]


def _cut_crops(x: Images, crops: Crops) -> Tensor:
    pixels = x.mul(255).round().to(torch.uint8).movedim(1, -1).numpy()
    images = (Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image) for image in pixels)
    cut = [torch.tensor(to_chw(crops.cut(image, row))) for row, image in enumerate(images)]
    return torch.stack(cut).float().div_(255)
