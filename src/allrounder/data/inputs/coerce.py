"""Convert images and labels in any usual form to a split or a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from allrounder.data.base import (
    Array,
    Data,
    Split,
    TensorSplit,
    as_tensor,
    classes_from_labels,
    prefix_errors,
)
from allrounder.data.inputs.map_dataset import MapDataset, MapDatasetSplit, find_classes, is_map_dataset
from allrounder.data.inputs.pairs import split_pair
from allrounder.errors import DataError

DataLike: TypeAlias = Data | Split | Array | MapDataset | Iterable[Any]
"""A dataset (its test split is used), a split, images, a map-style dataset of (image, label), or a loader of
(images, labels) batches."""


def as_split(data: DataLike, y: Array | None = None) -> Split:
    """Convert data to a split; labels `y` belong to an array of images only.

    The images of a loader are kept in memory, those of a map-style dataset are read when they are needed.
    """
    if isinstance(data, Data | Split):
        if y is not None:
            raise DataError("labels: got some beside a dataset, expected none; it has its own")
        return data.test if isinstance(data, Data) else data
    if isinstance(data, Tensor | np.ndarray):
        if y is None:
            raise DataError("labels: got none, expected one for each image; give (model, x, y, ...)")
        return _to_split(as_tensor("images", cast(Array, data)), as_tensor("labels", y))
    if y is None and is_map_dataset(data):
        return MapDatasetSplit(data)
    if y is not None or isinstance(data, str) or not hasattr(data, "__iter__"):
        kind = type(data).__name__
        hint = "; load one by name with allrounder.DATASETS[NAME]().load()" if isinstance(data, str) else ""
        raise DataError(f"data: got a {kind}, expected images and labels, a dataset, or a loader{hint}")
    return _read_loader(cast(Iterable[Any], data))


def as_data(
    train: DataLike | tuple[Array, Array],
    test: DataLike | tuple[Array, Array],
    *,
    name: str = "given",
    classes: Sequence[str] | None = None,
) -> Data:
    """Convert Python objects to a dataset for training: `train(recipe, out, data=as_data(mine, others))`.

    Each split is a pair (images, labels), a map-style dataset of (image, label) as in torch.utils.data, a
    loader, or a split. Without `classes`, the class names are those that a dataset lists as `classes`, else
    the numbers in the training labels. Runs store the name only; pass the same data to resume.
    """
    with prefix_errors("train"):
        train_split = _as_single_split(train)
    with prefix_errors("test"):
        test_split = _as_single_split(test)
    names = find_classes(train) or find_classes(test) if classes is None else tuple(classes)
    with prefix_errors("train"):
        names = classes_from_labels(train_split.labels) if names is None else names
    return Data(name, train_split, test_split, names)


def _as_single_split(data: DataLike | tuple[Array, Array]) -> Split:
    if isinstance(data, Data):
        raise DataError("data: got a whole dataset, expected one split of it; give its train or test")
    pair = cast(tuple[Any, ...], data if type(data) is tuple else ())
    if len(pair) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in pair):
        return as_split(*pair)
    return as_split(cast(DataLike, data))


def _read_loader(loader: Iterable[Any]) -> Split:
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in loader:
        with prefix_errors("loader:"):
            raw_images, raw_labels = split_pair(batch, "pairs (images, labels)")
        x, y = as_tensor("images of a loader", raw_images), as_tensor("labels of a loader", raw_labels)
        images.append(x)
        labels.append(y)
        if x.dim() != 4 or x.shape[1:] != images[0].shape[1:] or y.dim() != 1:
            raise DataError(
                f"loader: got images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}, "
                "expected batches of images of one shape, (n, c, h, w) and (n,)"
            )
    if not images:
        raise DataError("loader: got no batch, expected pairs (images, labels)")
    return _to_split(torch.cat(images), torch.cat(labels))


def _to_split(x: Tensor, y: Tensor) -> TensorSplit:
    # The split itself reports invalid labels.
    highest = int(y.max()) if y.numel() and not y.is_floating_point() and not y.is_complex() else 0
    return TensorSplit(x.cpu(), y.cpu(), max(highest, 0) + 1)
