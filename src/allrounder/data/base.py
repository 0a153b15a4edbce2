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

from allrounder.data.validate import check_images, check_labels, check_whole
from allrounder.rng import Draws
from allrounder.types import Batch, Images, Labels

Array: TypeAlias = NDArray[Any] | Tensor
Layout: TypeAlias = Literal["nchw", "nhwc", "nhw"]
"""The order of an image array's dimensions; nhw is greyscale without a channel."""
AHEAD = 2
"""Batches that a split is told of before they are fetched."""


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


@runtime_checkable
class Expects(Protocol):
    """A split that can prepare images before they are fetched."""

    def expect(self, index: Labels) -> None:
        """These are likely to be fetched soon; what is fetched does not depend on it."""
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
        check_images(self.images)
        check_labels(self.labels, len(self.images), self.num_classes)
        object.__setattr__(self, "labels", self.labels.detach().long())

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, index: Labels) -> Images:
        """The images at these positions."""
        x = self.images.index_select(0, index).contiguous()
        return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


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

    def expect(self, index: Labels) -> None:
        """Hand it on to the split that has the images."""
        if isinstance(self.whole, Expects):
            self.whole.expect(self.index[index])


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
                check_labels(split.labels, len(split), len(self.classes))
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
            names = number_classes(labels) if classes is None else tuple(classes)
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
            names = number_classes(labels) if classes is None else tuple(classes)
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


def number_classes(y: Tensor) -> tuple[str, ...]:
    """The classes named by the numbers found in labels, which must be 0 .. k - 1 without a gap."""
    check_whole(y)
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

    def load_test(self) -> Data:
        """Enough of it to evaluate on its test split: all, unless that is easier to have."""
        return self.load()


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
        self._orders: dict[int, Tensor] = {}

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(len(self.split), self.size)
        return max(1, full + (rest > 1))

    def at(self, epoch: int, step: int) -> Batch:
        """The batch of a step; which one it is depends on the address alone, never on the calls before.

        A split that can prepare images is told which ones come next.
        """
        if epoch < 1 or not 1 <= step <= self.steps:
            raise ValueError(
                f"batch: got epoch {epoch}, step {step}; expected epoch from 1, step 1 to {self.steps}"
            )
        index = self._index(epoch, step)
        batch = Batch(x=self.split.fetch(index), y=self._labels[index], index=index)
        if isinstance(self.split, Expects):
            for later in range(step, step + AHEAD):
                self.split.expect(self._index(epoch + later // self.steps, later % self.steps + 1))
        self._orders = {e: order for e, order in self._orders.items() if epoch <= e <= epoch + AHEAD}
        return batch

    def _index(self, epoch: int, step: int) -> Tensor:
        if epoch not in self._orders:
            self._orders[epoch] = self.draws.at("order", epoch).permutation(len(self.split))
        first = (step - 1) * self.size
        return self._orders[epoch][first : len(self.split) if step == self.steps else first + self.size]
