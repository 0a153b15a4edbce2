"""Somebody's dataset object as a split: its items are asked for when they are fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, cast, final, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from allrounder.data.base import tensor_of
from allrounder.data.streaming.decode import as_bytes
from allrounder.data.validate import check_images, check_whole
from allrounder.errors import DataError
from allrounder.types import Images, Labels

LISTS = ("targets", "labels")
"""Where datasets keep the labels of all their items."""
CHANNELS = ("L", "RGB")
"""What Pillow calls images whose numbers are channels as they are."""


@runtime_checkable
class Items(Protocol):
    """A dataset whose items are (image, label) and are asked for by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: int, /) -> Any: ...


def is_items(data: object) -> TypeGuard[Items]:
    """Whether something is such a dataset; a list of pairs is, if a label is one number: else they are
    batches."""
    if isinstance(data, list | tuple):
        first: Any = cast(Sequence[Any], data)[0] if data else None
        pair = cast(Sequence[Any], first) if isinstance(first, list | tuple) else ()
        return len(pair) == 2 and np.ndim(pair[1]) == 0
    if isinstance(data, str | bytes | Mapping | IterableDataset):
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


@final
class Objects:
    """The items of a dataset as a split; they are not kept.

    Items are (image, label). An image is a tensor or an array (c, h, w) of bytes or of floats in [0, 1], or a
    grey or RGB image of Pillow; all have one shape. Labels come from `targets` or `labels` where the dataset
    has them; else all items are asked for once. Items must be the same every time: what is random is the
    business of training.
    """

    def __init__(self, items: Items) -> None:
        if len(items) < 1:
            raise ValueError(f"data: got a {type(items).__name__} without items, expected some")
        self.items = items
        first, again = (_image(items, 0) for _ in range(2))
        self.shape = tuple(first.shape)
        if not torch.equal(first, again):
            raise ValueError(
                f"data: item 0 of the {type(items).__name__} is another image every time; leave out what is "
                "random, training has augmentations of its own"
            )
        known = labels_of(items)
        self._labels = _asked(items) if known is None else known

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Labels:
        """The labels of all items."""
        return self._labels

    def fetch(self, index: Labels) -> Images:
        """The images at these positions, asked for now and checked."""
        x = torch.empty(len(index), *self.shape)
        for position, target in zip(cast(list[int], index.tolist()), x, strict=True):
            image, label = _item(self.items, position)
            if tuple(image.shape) != self.shape:
                raise DataError(
                    f"item {position}: got an image of shape {tuple(image.shape)}, expected {self.shape} as "
                    "item 0 has; bring all to one size"
                )
            if label != int(self._labels[position]):
                raise DataError(
                    f"item {position}: has the label {label}, but the dataset lists "
                    f"{int(self._labels[position])} for it; make both the same"
                )
            target.copy_(image)
        return x


def labels_of(items: object) -> Tensor | None:
    """The labels that a dataset lists, also as a part of another one; nothing where it lists none."""
    for name in LISTS:
        listed = getattr(items, name, None)
        if isinstance(listed, Tensor | np.ndarray | list | tuple):
            try:
                return _numbers(name, cast(Any, listed), len(cast(Items, items)))
            except ValueError:
                if name == LISTS[0]:
                    raise  # by other names, lists may hold something else, such as the names of classes
    whole, chosen = getattr(items, "dataset", None), getattr(items, "indices", None)
    if whole is None or chosen is None:
        return None
    labels = labels_of(whole)
    return None if labels is None else labels[torch.as_tensor(np.asarray(chosen), dtype=torch.int64)]


def _numbers(name: str, listed: Any, count: int) -> Tensor:
    labels = tensor_of("labels", listed if isinstance(listed, Tensor) else np.asarray(listed))
    check_whole(labels)
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(
            f"labels: {name} has shape {tuple(labels.shape)}, expected ({count},): one for each item"
        )
    return labels.detach().cpu().long()


def classes_of(data: object) -> tuple[str, ...] | None:
    """The names of the classes that a dataset lists, also as a part of another one."""
    listed = getattr(data, "classes", None)
    if isinstance(listed, list | tuple) and listed:
        return tuple(str(name) for name in cast(Sequence[object], listed))
    whole = getattr(data, "dataset", None)
    return None if whole is None else classes_of(whole)


def _asked(items: Items) -> Tensor:
    def labels() -> Iterator[int]:
        for position in range(len(items)):
            yield _item(items, position)[1]

    return torch.tensor(list(labels()), dtype=torch.int64)


def _image(items: Items, position: int) -> Tensor:
    return _item(items, position)[0]


def _item(items: Items, position: int) -> tuple[Tensor, int]:
    """The image, in [0, 1], and the label at a position; what is wrong is said with the position."""
    pair = items[position]
    if type(pair) not in (tuple, list) or len(cast(Sequence[Any], pair)) < 2:
        raise DataError(
            f"item {position}: got a {type(pair).__name__}, expected a pair (image, label); "
            "wrap the dataset so that it gives such pairs"
        )
    raw, label = cast(Sequence[Any], pair)[:2]
    try:
        image = _pixels(raw)
        check_images(image[None])
        # A whole number of any library.
        number = np.asarray(label.cpu() if isinstance(label, Tensor) else label)
        if number.dtype.kind not in "iu" or number.size != 1:
            raise ValueError(f"label: got {label!r}, expected one whole number; give the number of its class")
    except ValueError as error:
        raise DataError(f"item {position}: {error}") from None
    image = image.float().div(255) if image.dtype == torch.uint8 else image.float()
    return image, int(number.item())


def _pixels(raw: object) -> Tensor:
    if isinstance(raw, Image.Image):
        if raw.mode not in CHANNELS:
            raise ValueError(
                f'image: got one of mode "{raw.mode}", expected grey ("L") or "RGB"; convert it with .convert'
            )
        return torch.from_numpy(as_bytes(raw).copy())
    if not isinstance(raw, Tensor | np.ndarray):
        raise ValueError(
            f"image: got a {type(raw).__name__}, expected a tensor, an array, or an image of Pillow"
        )
    image = tensor_of("image", cast(Any, raw)).detach().cpu()
    if image.ndim != 3:
        raise ValueError(f"image: got shape {tuple(image.shape)}, expected (c, h, w)")
    return image
