"""A dataset: a training and a test split of images in [0, 1] with hard labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from allrounder.errors import DataError
from allrounder.system.summary import HasSummary, Summary, format_shape, list_names
from allrounder.types import Images, Labels

Array: TypeAlias = NDArray[Any] | Tensor
Layout: TypeAlias = Literal["nchw", "nhwc", "nhw"]
"""The order of the dimensions of an image array; nhw is greyscale without a channel dimension."""


@runtime_checkable
class Split(Protocol):
    """Labelled images that are fetched by position, from memory, from files or from another split."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Labels:
        """The hard label of every image, int64."""
        ...

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions: float32, in [0, 1], contiguous."""
        ...


@runtime_checkable
class Prefetchable(Protocol):
    """A split that can prepare images before they are fetched."""

    def prefetch(self, index: Labels) -> None:
        """Start preparing the images at these positions. It does not change what `fetch` returns."""
        ...


def prefetch(split: Split, index: Labels) -> None:
    """Tell a split to prepare the images at these positions, if it can prefetch."""
    if isinstance(split, Prefetchable):
        split.prefetch(index)


def image_shape(split: Split) -> tuple[int, int, int]:
    """Channels, height and width of the images of a split."""
    c, h, w = split.fetch(torch.tensor([0])).shape[1:]
    return c, h, w


@final
@dataclass(frozen=True, eq=False)
class TensorSplit:
    """A split in memory. uint8 images stay uint8 and are divided by 255 when they are fetched."""

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

    def __repr__(self) -> str:
        shape = format_shape(self.images.shape[1:])
        return f"TensorSplit({len(self)} images {shape}, {self.num_classes} classes)"

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions."""
        x = self.images.index_select(0, index).contiguous()
        return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


@final
@dataclass(frozen=True, eq=False)
class Subset:
    """Selected images of another split, by position; nothing is copied."""

    split: Split
    index: Tensor

    def __post_init__(self) -> None:
        assert self.index.ndim == 1 and self.index.dtype == torch.int64, "positions, not a mask"
        if not len(self.index) or int(self.index.min()) < 0 or int(self.index.max()) >= len(self.split):
            raise DataError(f"subset: got {self.index}, expected positions from 0 to {len(self.split) - 1}")

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"Subset({len(self)} images of {self.split})"

    @property
    def labels(self) -> Labels:
        """The labels of the selected images."""
        return self.split.labels[self.index]

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions of the subset."""
        return self.split.fetch(self.index[index])

    def prefetch(self, index: Labels) -> None:
        """Forward to the underlying split, if it can prefetch."""
        prefetch(self.split, self.index[index])


@final
@dataclass(frozen=True, eq=False, repr=False)
class Data(HasSummary):
    """A dataset: a training and a test split with the same classes and image shape."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    extra: Split | None = None
    """Additional training images, used where a recipe has `extra`."""
    shape: tuple[int, int, int] = field(init=False)
    """Channels, height and width of an image."""

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise DataError(f"classes: got {self.classes}, expected two or more different names")
        for name, split in (("train", self.train), ("test", self.test)):
            with prefix_errors(name):
                check_labels(split.labels, len(split), len(self.classes))
        train, test = image_shape(self.train), image_shape(self.test)
        if train != test:
            raise DataError(f"images: got shape {train} in train and {test} in test, expected the same")
        object.__setattr__(self, "shape", train)

    @override
    def summary(self) -> Summary:
        """Describe the splits and the classes."""
        train = None if self.train is self.test else self.train
        splits = {"train": train, "test": self.test, "extra": self.extra}
        shape = format_shape(self.shape)
        rows = [(name, f"{len(split)} images {shape}") for name, split in splits.items() if split is not None]
        classes = f"{len(self.classes)}: {list_names(self.classes)}"
        return Summary(f"Data {self.name}", [*rows, ("classes", classes)])

    @staticmethod
    def from_arrays(
        name: str,
        x_train: Array,
        y_train: Array,
        x_test: Array,
        y_test: Array,
        classes: Sequence[str] | None = None,
        layout: Layout = "nchw",
    ) -> Data:
        """Build a dataset in memory from images as uint8, or as floats in [0, 1], copied only if necessary.

        Without `classes`, the names are the numbers in `y_train`, which must be 0 .. k - 1 without a gap.
        """
        with prefix_errors("train"):
            names = classes_from_labels(y_train) if classes is None else tuple(classes)
            train = _tensor_split(x_train, y_train, len(names), layout)
        with prefix_errors("test"):
            test = _tensor_split(x_test, y_test, len(names), layout)
        return Data(name, train, test, names)

    @staticmethod
    def from_test_arrays(
        name: str, x: Array, y: Array, classes: Sequence[str] | None = None, layout: Layout = "nchw"
    ) -> Data:
        """Build a dataset for evaluation from test images only; `train` is the same split as `test`."""
        with prefix_errors("test"):
            names = classes_from_labels(y) if classes is None else tuple(classes)
            test = _tensor_split(x, y, len(names), layout)
        return Data(name, test, test, names)


@contextmanager
def prefix_errors(where: str) -> Generator[None]:
    """Raise a ValueError as a DataError whose message begins with the place of the wrong value."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{where} {error}") from None


def as_tensor(name: str, raw: object) -> Tensor:
    """Convert an array to a tensor, sharing its memory where possible; errors begin with `name`."""
    if isinstance(raw, Tensor):
        return raw
    if not isinstance(raw, np.ndarray):
        kind = type(raw).__name__
        raise DataError(f"{name}: got a {kind}, expected a tensor or an array; convert with torch.tensor")
    return _from_numpy(name, cast(NDArray[Any], raw))


def _from_numpy(name: str, raw: NDArray[Any]) -> Tensor:
    array = np.ascontiguousarray(raw, dtype=raw.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError:
        raise DataError(f"{name}: got dtype {raw.dtype}, expected numbers; convert them") from None


def to_nchw(name: str, x: Tensor, layout: Layout) -> Tensor:
    """A view of images with the dimensions (n, c, h, w); errors begin with `name`."""
    ndim = 3 if layout == "nhw" else 4
    if x.ndim != ndim:
        raise DataError(
            f'{name}: got shape {tuple(x.shape)}, expected {ndim} dimensions for layout "{layout}"; '
            'set layout to "nchw", "nhwc" or "nhw"'
        )
    if layout == "nchw":
        return x
    return x.unsqueeze(1) if layout == "nhw" else x.movedim(-1, 1)


def _tensor_split(x: Array, y: Array, num_classes: int, layout: Layout) -> TensorSplit:
    labels = as_tensor("labels", y)
    return TensorSplit(to_nchw("images", as_tensor("images", x), layout).contiguous(), labels, num_classes)


def classes_from_labels(y: Array) -> tuple[str, ...]:
    """Name the classes by their numbers; the labels must cover 0 .. k - 1 without a gap."""
    labels = as_tensor("labels", y)
    check_integer_labels(labels)
    numbers = cast(list[int], labels.long().unique().tolist())
    if numbers != list(range(len(numbers))):
        raise DataError(
            f"labels: got {len(numbers)} numbers from {numbers[0]} to {numbers[-1]}, expected 0 to "
            f"{len(numbers) - 1}; number the classes from 0 without a gap, or name them all in classes"
        )
    return tuple(map(str, numbers))


def check_images(x: Tensor) -> None:
    """Raise DataError unless images are (n, c, h, w), uint8 or floats in [0, 1]."""
    if x.ndim != 4 or 0 in x.shape:
        hint = '; greyscale images without a channel are layout "nhw"' if x.ndim == 3 else ""
        raise DataError(f"images: got shape {tuple(x.shape)}, expected (n, c, h, w), none of them 0{hint}")
    if x.shape[1] == x.shape[2] > 4 and x.shape[3] in (1, 3):
        hint = 'the channels seem to come last: use x.permute(0, 3, 1, 2), or layout="nhwc" where it exists'
        raise DataError(f"images: got shape {tuple(x.shape)}, expected (n, c, h, w); {hint}")
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise DataError(f"images: got {x.dtype}, expected uint8 or a floating type in [0, 1]; convert them")
    low, high = (float(end) for end in x.aminmax())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError("images: got NaN or infinite pixels, expected finite ones in [0, 1]; fix them")
    if low < 0 or high > 1:
        hint = "undo any normalisation, which belongs to the network"
        if low >= 0 and high <= 255:
            hint = "divide by 255, or give uint8"
        raise DataError(f"images: got pixels from {low:g} to {high:g}, expected [0, 1]; {hint}")


def check_labels(y: Tensor, num_images: int, num_classes: int) -> None:
    """Raise DataError unless there is one class number for each image."""
    check_integer_labels(y)
    if y.ndim != 1:
        hint = "; use y.argmax(1)" if y.ndim == 2 and y.shape[1] > 1 else ""
        raise DataError(f"labels: got shape {tuple(y.shape)}, expected (n,): one class for each image{hint}")
    if len(y) != num_images:
        raise DataError(f"labels: got {len(y)} for {num_images} images, expected one for each image")
    low, high = (int(end) for end in y.long().aminmax())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"labels: got numbers from {low} to {high}, expected 0 to {num_classes - 1}; "
            "number the classes from 0, or name them all in classes"
        )


def check_integer_labels(y: Tensor) -> None:
    """Raise DataError unless labels are whole numbers."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"labels: got {y.dtype}, expected whole numbers; convert them to int64")


class DataSpec(ABC):
    """A dataset as a recipe describes it; `load` reads the images."""

    @abstractmethod
    def load(self) -> Data:
        """Read and check the dataset. Raises an error that says what to do if it cannot be read."""

    def load_test(self) -> Data:
        """Read what an evaluation on the test split needs; the whole dataset unless a subclass reads less."""
        return self.load()
