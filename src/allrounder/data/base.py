"""What a dataset is: two splits of images in [0, 1] with hard labels, and the order of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from allrounder.rng import Draws
from allrounder.types import Batch, Images, Labels

Array: TypeAlias = NDArray[Any] | Tensor
Layout: TypeAlias = Literal["nchw", "nhwc", "nhw"]
"""The order of an image array's dimensions; nhw is greyscale without a channel."""


@runtime_checkable
class Split(Protocol):
    """Images that are fetched by position; where they are kept is its own affair."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Labels:
        """The hard label of every image, int64."""
        ...

    def fetch(self, index: Labels) -> Images:
        """The images at these positions: float32, in [0, 1], contiguous."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Tensors:
    """A split in memory. Bytes are kept as bytes and divided by 255 when they are fetched."""

    images: Tensor
    labels: Tensor
    num_classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", self.images.detach())
        _check_images(self.images)
        _check_labels(self.labels, len(self.images), self.num_classes)
        object.__setattr__(self, "labels", self.labels.detach().long())

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, index: Labels) -> Images:
        """The images at these positions."""
        x = self.images.index_select(0, index).contiguous()
        return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


def _check_images(x: Tensor) -> None:
    if x.ndim != 4 or 0 in x.shape:
        hint = '; greyscale images without a channel are layout "nhw"' if x.ndim == 3 else ""
        raise ValueError(
            f"images: got shape {tuple(x.shape)}, expected (n, c, h, w) with none of them 0{hint}"
        )
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise ValueError(f"images: got {x.dtype}, expected uint8 or a floating type in [0, 1]; convert them")
    low, high = (float(end) for end in x.aminmax())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(
            "images: got NaN or infinite pixels, expected finite ones in [0, 1]; find and mend them"
        )
    if low < 0 or high > 1:
        bytes_ = low >= 0 and 1 < high <= 255
        hint = (
            "divide by 255, or give uint8" if bytes_ else "undo any normalisation, it belongs to the network"
        )
        raise ValueError(f"images: got pixels from {low:g} to {high:g}, expected [0, 1]; {hint}")


def _check_labels(y: Tensor, num_images: int, num_classes: int) -> None:
    _check_whole(y)
    if y.ndim != 1:
        raise ValueError(
            f"labels: got shape {tuple(y.shape)}, expected (n,): one class number for each image"
        )
    if len(y) != num_images:
        raise ValueError(f"labels: got {len(y)} for {num_images} images, expected one for each image")
    low, high = (int(end) for end in y.long().aminmax())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels: got numbers from {low} to {high}, expected 0 to {num_classes - 1}; "
            "number the classes from 0, or name them all in classes"
        )


def _check_whole(y: Tensor) -> None:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels: got {y.dtype}, expected whole numbers; convert them to int64")


@final
@dataclass(frozen=True, eq=False)
class Subset:
    """Some images of another split, by position, without a copy of them."""

    whole: Split
    index: Tensor

    def __post_init__(self) -> None:
        assert self.index.ndim == 1 and self.index.dtype == torch.int64, "positions, not a mask"
        if not len(self.index) or int(self.index.min()) < 0 or int(self.index.max()) >= len(self.whole):
            raise ValueError(f"subset: got {self.index}, expected positions from 0 to {len(self.whole) - 1}")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Labels:
        """The labels of the chosen images."""
        return self.whole.labels[self.index]

    def fetch(self, index: Labels) -> Images:
        """The images at these positions of the subset."""
        return self.whole.fetch(self.index[index])


@final
@dataclass(frozen=True, eq=False)
class Data:
    """A dataset: a training and a test split over the same classes and image shape."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    extra: Split | None = None
    """More images for training, where a recipe asks for them."""

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes: got {self.classes}, expected two or more different names")
        for part, split in (("train", self.train), ("test", self.test)):
            with named(part):
                _check_labels(split.labels, len(split), len(self.classes))
        shapes = [tuple(split.fetch(torch.tensor([0])).shape[1:]) for split in (self.train, self.test)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"images: got shape {shapes[0]} in train and {shapes[1]} in test, expected the same"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        c, h, w = self.train.fetch(torch.tensor([0])).shape[1:]
        return c, h, w

    @staticmethod
    def of(
        name: str,
        x_train: Array,
        y_train: Array,
        x_test: Array,
        y_test: Array,
        classes: Sequence[str] | None = None,
        layout: Layout = "nchw",
    ) -> Data:
        """A dataset in memory from arrays or tensors: images as bytes or as floats in [0, 1].

        Arrays are not copied where that can be avoided. Without names, the classes are the numbers found in
        training, which must then be 0 .. k - 1 without a gap.
        """
        with named("train"):
            labels = tensor_of("labels", y_train)
            names = _number(labels) if classes is None else tuple(classes)
            train = Tensors(_nchw(tensor_of("images", x_train), layout), labels, len(names))
        with named("test"):
            test = Tensors(
                _nchw(tensor_of("images", x_test), layout), tensor_of("labels", y_test), len(names)
            )
        return Data(name, train, test, names)

    @staticmethod
    def of_test(
        name: str, x: Array, y: Array, classes: Sequence[str] | None = None, layout: Layout = "nchw"
    ) -> Data:
        """A dataset of test images alone, to evaluate on: as nothing else is there, they are `train` too."""
        with named("test"):
            labels = tensor_of("labels", y)
            names = _number(labels) if classes is None else tuple(classes)
            test = Tensors(_nchw(tensor_of("images", x), layout), labels, len(names))
        return Data(name, test, test, names)


@contextmanager
def named(where: str) -> Generator[None]:
    """Say in an error of a wrong value where that value is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where} {error}") from None


def tensor_of(what: str, raw: Array) -> Tensor:
    """A tensor over the memory of an array, where that is possible."""
    if isinstance(raw, Tensor):
        return raw
    array = np.ascontiguousarray(raw, dtype=raw.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError:
        raise ValueError(f"{what}: got dtype {raw.dtype}, expected numbers; convert them") from None


def _nchw(x: Tensor, layout: Layout) -> Tensor:
    expected = 3 if layout == "nhw" else 4
    if x.ndim != expected:
        raise ValueError(
            f'images: got shape {tuple(x.shape)}, expected {expected} dimensions as layout "{layout}" says; '
            'set layout to "nchw", "nhwc" or "nhw"'
        )
    if layout == "nchw":
        return x
    return (x.unsqueeze(1) if layout == "nhw" else x.permute(0, 3, 1, 2)).contiguous()


def _number(y: Tensor) -> tuple[str, ...]:
    _check_whole(y)
    found = cast(list[int], y.long().unique().tolist())
    if found != list(range(len(found))):
        raise ValueError(
            f"labels: got {len(found)} numbers from {found[0]} to {found[-1]}, expected all from 0 on; "
            "number the classes from 0, or name them all in classes"
        )
    return tuple(str(k) for k in range(len(found)))


class DataSpec(ABC):
    """A value that names a dataset; loading it gives the images."""

    @abstractmethod
    def load(self) -> Data:
        """Read the dataset, checked. Raises a clear error where it cannot be read."""


@final
class Batches:
    """The batches of a split in a random order, each found by its epoch and step, both from 1.

    Every image comes once an epoch and the last batch may be smaller. A last image that would be alone joins
    the batch before it, because batch-norm has no variance of one image.
    """

    def __init__(self, split: Split, size: int, draws: Draws) -> None:
        if size < 1 or len(split) < 1:
            raise ValueError(
                f"batches: got size {size} over {len(split)} images, expected at least 1 of both"
            )
        self.split, self.size, self.draws = split, size, draws
        self._labels = split.labels
        self._order = (0, torch.empty(0, dtype=torch.int64))

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(len(self.split), self.size)
        return max(1, full + (rest > 1))

    def at(self, epoch: int, step: int) -> Batch:
        """The batch of a step; which one it is depends on the address alone, never on the calls before."""
        if epoch < 1 or not 1 <= step <= self.steps:
            raise ValueError(
                f"batch: got epoch {epoch}, step {step}; expected epoch from 1, step 1 to {self.steps}"
            )
        first = (step - 1) * self.size
        end = len(self.split) if step == self.steps else first + self.size
        index = self._epoch(epoch)[first:end]
        return Batch(x=self.split.fetch(index), y=self._labels[index], index=index)

    def _epoch(self, epoch: int) -> Tensor:
        if self._order[0] != epoch:
            self._order = (epoch, self.draws.at("order", epoch).permutation(len(self.split)))
        return self._order[1]
