"""A map-style dataset, as in torch.utils.data, as a split; items are read when they are fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, cast, final, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from allrounder.data.base import as_tensor, check_images, check_integer_labels
from allrounder.data.inputs.pairs import LABEL_KEYS, split_pair
from allrounder.data.streaming.decode import to_chw
from allrounder.errors import DataError
from allrounder.system.summary import format_shape
from allrounder.types import Images, Labels

LABEL_ATTRIBUTES = ("targets", "labels")
"""Attributes in which datasets list the labels of all items."""
IMAGE_MODES = ("L", "RGB")
"""Pillow's modes that are accepted without conversion."""


@runtime_checkable
class MapDataset(Protocol):
    """A map-style dataset: items (image, label), read by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: int, /) -> Any: ...


def is_map_dataset(data: object) -> TypeGuard[MapDataset]:
    """Whether an object is a map-style dataset; a list of batches (images, labels) is none."""
    if isinstance(data, list | tuple):
        first: Any = cast(Sequence[Any], data)[0] if data else None
        pair = cast(Sequence[Any], first) if isinstance(first, list | tuple) else ()
        if isinstance(first, Mapping):
            mapping = cast(Mapping[str, Any], first)
            pair = (None, *(mapping[key] for key in LABEL_KEYS if key in mapping))
        return len(pair) == 2 and np.ndim(pair[1]) == 0
    if isinstance(data, str | bytes | Mapping | IterableDataset):
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


@final
class MapDatasetSplit:
    """The items of a map-style dataset as a split; they are not kept in memory.

    Items are (image, label), or mappings with both (`pairs.py`). An image is a tensor or an array (c, h, w),
    uint8 or floats in [0, 1], or a greyscale or RGB image of Pillow; all have one shape. Labels come from
    `targets` or `labels` if the dataset has them; else every item is read once. An item must be the same
    every time it is read: leave random augmentation to training.
    """

    def __init__(self, dataset: MapDataset) -> None:
        if len(dataset) < 1:
            raise DataError(f"data: got a {type(dataset).__name__} without items, expected some")
        self.dataset = dataset
        first, again = (_read_item(dataset, 0)[0] for _ in range(2))
        self.shape = tuple(first.shape)
        if not torch.equal(first, again):
            raise DataError(
                f"data: item 0 of the {type(dataset).__name__} is another image every time; remove its "
                "random augmentation, training has its own"
            )
        labels = find_labels(dataset)
        if labels is None:
            labels = torch.tensor([_read_item(dataset, position)[1] for position in range(len(dataset))])
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = type(self.dataset).__name__
        return f"MapDatasetSplit({len(self)} images {format_shape(self.shape)} of a {kind})"

    def fetch(self, index: Labels) -> Images:
        """Read and check the images at these positions."""
        x = torch.empty(len(index), *self.shape)
        for position, target in zip(cast(list[int], index.tolist()), x, strict=True):
            (image, label), listed = _read_item(self.dataset, position), int(self.labels[position])
            if tuple(image.shape) != self.shape:
                raise DataError(
                    f"item {position}: got an image of shape {tuple(image.shape)}, expected {self.shape} as "
                    "item 0 has; resize all to one size"
                )
            if label != listed:
                raise DataError(
                    f"item {position}: has the label {label}, but the dataset lists {listed} for it; make "
                    "both the same"
                )
            target.copy_(image)
        return x


def find_labels(dataset: object) -> Tensor | None:
    """The labels that a dataset, or the dataset of a torch Subset, lists; None if it lists none."""
    for name in LABEL_ATTRIBUTES:
        listed = getattr(dataset, name, None)
        if isinstance(listed, Tensor | np.ndarray | list | tuple):
            try:
                array = listed if isinstance(listed, Tensor) else np.asarray(cast(Any, listed))
                labels = as_tensor("labels", array)
                check_integer_labels(labels)
                if labels.shape != (count := len(cast(MapDataset, dataset)),):
                    got = f"{name} has shape {tuple(labels.shape)}"
                    raise DataError(f"labels: {got}, expected ({count},): one for each item")
                return labels.detach().cpu().long()
            except ValueError:
                if name == LABEL_ATTRIBUTES[0]:
                    raise  # `labels`, unlike `targets`, may hold something else, such as class names
    parent, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if parent is None or indices is None:
        return None
    labels = find_labels(parent)
    return None if labels is None else labels[torch.as_tensor(np.asarray(indices), dtype=torch.int64)]


def find_classes(data: object) -> tuple[str, ...] | None:
    """The class names that a dataset, or the dataset of a torch Subset, lists; None if it lists none."""
    listed = getattr(data, "classes", None)
    if isinstance(listed, list | tuple) and listed:
        return tuple(str(name) for name in cast(Sequence[object], listed))
    parent = getattr(data, "dataset", None)
    return None if parent is None else find_classes(parent)


def _read_item(dataset: MapDataset, position: int) -> tuple[Tensor, int]:
    """Read the image, in [0, 1], and the label at a position. Raises a DataError that names the position."""
    pair = dataset[position]
    try:
        raw, label = split_pair(pair, "a pair (image, label)")
        image = _to_tensor(raw)
        check_images(image[None])
        # Accepts the integers of any library.
        number = np.asarray(label.cpu() if isinstance(label, Tensor) else label)
        if number.dtype.kind not in "iu" or number.size != 1:
            raise DataError(f"label: got {label!r}, expected one whole number; give the number of its class")
    except ValueError as error:
        raise DataError(f"item {position}: {error}") from None
    image = image.float().div(255) if image.dtype == torch.uint8 else image.float()
    return image, int(number.item())


def _to_tensor(raw: object) -> Tensor:
    if isinstance(raw, Image.Image):
        if raw.mode not in IMAGE_MODES:
            expected = 'expected greyscale ("L") or "RGB"; convert it with .convert'
            raise DataError(f'image: got mode "{raw.mode}", {expected}')
        return torch.from_numpy(to_chw(raw).copy())
    if not isinstance(raw, Tensor | np.ndarray):
        kind = type(raw).__name__
        raise DataError(f"image: got a {kind}, expected a tensor, an array, or an image of Pillow")
    image = as_tensor("image", cast(object, raw)).detach().cpu()
    if image.ndim != 3:
        raise DataError(f"image: got shape {tuple(image.shape)}, expected (c, h, w)")
    return image
