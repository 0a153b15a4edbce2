"""Images and labels in whatever form somebody has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from allrounder.data.base import Array, Data, Split, Tensors, named, number_classes, tensor_of
from allrounder.data.inputs.map_dataset import Items, Objects, classes_of, is_items

Given: TypeAlias = Data | Split | Array | Items | Iterable[Any]
"""A dataset (its test split is meant), a split, images, an object with items (image, label), or a loader of
(images, labels) batches."""


def as_split(data: Given, y: Array | None = None) -> Split:
    """A split of what is given.

    A loader is read once, and its images are kept in memory; the items of an object are asked for when they
    are needed.
    """
    if isinstance(data, Data | Split):
        if y is not None:
            raise ValueError("labels: got some beside a dataset, expected none; it has its own")
        return data.test if isinstance(data, Data) else data
    if isinstance(data, Tensor | np.ndarray):
        if y is None:
            raise ValueError("labels: got none, expected one for each image; give (model, x, y, ...)")
        return _tensors(_tensor("images", cast(Array, data)), _tensor("labels", y))
    if y is None and is_items(data):
        return Objects(data)
    if y is not None or isinstance(data, str) or not hasattr(data, "__iter__"):
        what = type(data).__name__
        raise ValueError(f"data: got a {what}, expected images and labels, a dataset, or a loader")
    return _read(cast(Iterable[Any], data))


def as_data(
    train: Given | tuple[Array, Array],
    test: Given | tuple[Array, Array],
    *,
    name: str = "given",
    classes: Sequence[str] | None = None,
) -> Data:
    """A dataset to train on, from objects: `train(recipe, out, data=as_data(mine, others))`.

    Either split is a pair (images, labels), an object with items (image, label) such as those of
    torch.utils.data, a loader, or a split. Without names, the classes are those that an object lists as
    `classes`, else the numbers found in training. Runs remember the name; give the same data to resume.
    """
    with named("train"):
        ours = _part(train)
    with named("test"):
        theirs = _part(test)
    names = tuple(classes) if classes is not None else classes_of(train) or classes_of(test)
    if names is None:
        with named("train"):
            names = number_classes(ours.labels)
    return Data(name, ours, theirs, names)


def _part(given: Given | tuple[Array, Array]) -> Split:
    if isinstance(given, Data):
        raise ValueError("data: got a whole dataset, expected one split of it; give its train or test")
    pair = cast(tuple[Any, ...], given if type(given) is tuple else ())
    if len(pair) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in pair):
        return as_split(*pair)
    return as_split(cast(Given, given))


def _read(loader: Iterable[Any]) -> Split:
    images, labels = list[Tensor](), list[Tensor]()
    for batch in loader:
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
