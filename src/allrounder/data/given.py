"""Images and labels in whatever form somebody has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from allrounder.data.base import Array, Data, Split, Tensors, tensor_of

Given: TypeAlias = Data | Split | Array | Iterable[Any]
"""A dataset (its test split is meant), a split, images, or a loader of (images, labels) batches."""


def as_split(data: Given, y: Array | None = None) -> Split:
    """A split of what is given; a loader is read once, and its images are kept in memory."""
    if isinstance(data, Data | Split):
        if y is not None:
            raise ValueError("labels: got some beside a dataset, expected none; it has its own")
        return data.test if isinstance(data, Data) else data
    if isinstance(data, Tensor | np.ndarray):
        if y is None:
            raise ValueError("labels: got none, expected one for each image; give (model, x, y, ...)")
        return _tensors(_tensor("images", cast(Array, data)), _tensor("labels", y))
    if y is not None or isinstance(data, str) or not hasattr(data, "__iter__"):
        what = type(data).__name__
        raise ValueError(f"data: got a {what}, expected images and labels, a dataset, or a loader")
    images, labels = list[Tensor](), list[Tensor]()
    for batch in data:
        pair = cast(Sequence[Any], batch)
        if type(pair) not in (tuple, list) or len(pair) < 2:
            raise ValueError(f"loader: got a {type(pair).__name__}, expected pairs (images, labels)")
        images.append(_tensor("images of a loader", pair[0]))
        labels.append(_tensor("labels of a loader", pair[1]))
        got = tuple(images[-1].shape), tuple(labels[-1].shape)
        if images[-1].dim() != 4 or got[0][1:] != images[0].shape[1:] or labels[-1].dim() != 1:
            said = f"loader: got images of shape {got[0]} and labels of shape {got[1]}"
            raise ValueError(f"{said}, expected batches of images of one shape, (n, c, h, w) and (n,)")
    if not images:
        raise ValueError("loader: got no batch, expected pairs (images, labels)")
    return _tensors(torch.cat(images), torch.cat(labels))


def _tensor(what: str, raw: object) -> Tensor:
    if not isinstance(raw, Tensor | np.ndarray):
        kind = type(raw).__name__
        raise ValueError(f"{what}: got a {kind}, expected a tensor or an array; convert with torch.tensor")
    return tensor_of(what, cast(Array, raw))


def _tensors(x: Tensor, y: Tensor) -> Tensors:
    # What is wrong with the labels themselves, the split says.
    highest = int(y.max()) if y.numel() and not y.is_floating_point() and not y.is_complex() else 0
    return Tensors(x.cpu(), y.cpu(), max(highest, 0) + 1)
