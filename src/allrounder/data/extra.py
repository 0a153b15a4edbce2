"""Extra training images: generated ones, or images with pseudo-labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast, final

from pydantic import Field

from allrounder.config.fields import FiniteFloat, OneOf, adapter, frozen_config, kind_of
from allrounder.data.base import (
    Data,
    DataSpec,
    Split,
    TensorSplit,
    as_tensor,
    image_shape,
    prefix_errors,
    to_nchw,
)
from allrounder.data.datasets.npz import InMemory, Npz, detect_layout, get_class_names, read_first_pair
from allrounder.errors import DataError, RecipeError

ARRAY_NAMES = (("x_train", "y_train"), ("x", "y"), ("image", "label"))
"""Accepted names of images and labels in a file; published generated CIFAR images use the last pair."""


def _datasets() -> Mapping[str, type[DataSpec]]:
    from allrounder.data import DATASETS

    return DATASETS


@final
@frozen_config
class Extra:
    """A second set of training images that fills a fixed share of every batch.

    An epoch has as many steps as without extra images, so it costs the same: epochs count passes over the
    original images, as in the papers that introduced extra data. Extra images are never used for validation.
    """

    data: Annotated[DataSpec, OneOf(_datasets)]
    """Any dataset; its training images are used. An npz file needs training images only, named x_train and
    y_train, x and y, or image and label. They are kept in memory: 3.1 GB for a million 32x32 colour images
    in uint8."""
    share: Annotated[FiniteFloat, Field(gt=0, lt=1)]
    """The share of extra images in every batch, rounded to whole images; the others are original."""

    def __str__(self) -> str:
        """For model cards and tables: "70% of every batch from npz (path more.npz, layout auto)"."""
        fields = adapter(type(self.data)).dump_python(self.data)
        options = ", ".join(f"{name} {field}" for name, field in cast(Mapping[str, object], fields).items())
        kind = kind_of(self.data, _datasets())
        return f"{100 * self.share:g}% of every batch from {kind}{f' ({options})' if options else ''}"

    def num_in_batch(self, batch: int, share: float | None = None) -> int:
        """The number of extra images in a batch of `batch` images; `share` replaces the share."""
        return int((self.share if share is None else share) * batch + 0.5)

    def load(self, main: Data) -> Split:
        """Read the extra images for the dataset `main`. Raises an error that says what to do if it fails."""
        match self.data:
            case InMemory(name=name):
                raise RecipeError(
                    f'extra: given from Python as "{name}", so the recipe does not hold it; '
                    "give it again, also to resume: train(recipe, out, data=Data(..., extra=...))"
                )
            case Npz():
                return _load_npz(self.data, main.classes)
            case _:
                data = self.data.load()
                _check_classes(data.classes, main.classes)
                return data.train


def check_compatible(extra: Split, main: Data) -> None:
    """Raise ValueError unless extra images have the shape and the classes of a dataset."""
    shape = image_shape(extra)
    if shape != main.shape:
        raise DataError(f"images: got shape {shape}, expected {main.shape} as in {main.name}; resize them")
    highest = int(extra.labels.max())
    if highest >= len(main.classes):
        raise DataError(
            f"labels: got {highest}, expected at most {len(main.classes) - 1}, as {main.name} has "
            f"{len(main.classes)} classes; use data with the same classes"
        )


def _load_npz(spec: Npz, classes: Sequence[str]) -> Split:
    path = Path(spec.path).expanduser()
    arrays, (x, y) = read_first_pair(path, ARRAY_NAMES)
    with prefix_errors(f"{path}:"):
        names = get_class_names(arrays)
        if names is not None:
            _check_classes(names, classes)
        layout = detect_layout(x, arrays[x]) if spec.layout == "auto" else spec.layout
        # Not contiguous but a view, because there may be gigabytes of images.
        images = to_nchw(x, as_tensor("images", arrays[x]), layout)
        return TensorSplit(images, as_tensor("labels", arrays[y]), len(classes))


def _check_classes(got: Sequence[str], expected: Sequence[str]) -> None:
    if len(got) != len(expected):
        raise DataError(f"classes: got {len(got)}, expected {len(expected)}; use data with the same classes")
    numbers = [str(number) for number in range(len(got))]
    for number, (name, other) in enumerate(zip(got, expected, strict=True)):
        if name != other and numbers not in (list(got), list(expected)):
            raise DataError(
                f'classes: got "{name}" as class {number}, expected "{other}"; put them in the same order'
            )
