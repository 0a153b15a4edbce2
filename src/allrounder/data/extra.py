"""A second set of images for training: generated ones, or ones with labels that a network gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast, final

import torch
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import Kind, Number, adapter, kind_of, value
from allrounder.data.base import AHEAD, Batches, Data, DataSpec, Split, Tensors, named, tensor_of
from allrounder.data.concat import Joined
from allrounder.data.datasets.npz import Given, Npz, class_names, read_arrays, recognise
from allrounder.errors import RecipeError
from allrounder.rng import Draws
from allrounder.types import Batch

PAIRS = (("x_train", "y_train"), ("x", "y"), ("image", "label"))
"""What images and their labels are called in files; the last as published with generated CIFAR images."""


def _table() -> Mapping[str, type[DataSpec]]:
    from allrounder.data import DATASETS

    return DATASETS


@final
@value
class Extra:
    """A second set of images, of which every batch of training takes a fixed part.

    An epoch has as many steps as it has without them, so it costs the same: it is counted in the number of
    the original images, as by the methods that began this. They never are in the validation cut.
    """

    data: Annotated[DataSpec, Kind(_table)]
    """Any dataset; its training images are used. An npz file needs no others, and may call them x_train and
    y_train, x and y, or image and label. They are kept in memory: 3.1 GB for a million 32x32 colour images
    in bytes."""
    share: Annotated[Number, Field(gt=0, lt=1)]
    """The part of every batch that is extra, rounded to whole images; the rest is original."""

    def __str__(self) -> str:
        """For cards and tables: "70% of every batch from npz (path more.npz, layout auto)"."""
        fields = adapter(type(self.data)).dump_python(self.data, mode="json", exclude_none=True)
        told = ", ".join(f"{name} {field}" for name, field in cast(Mapping[str, object], fields).items())
        kind = kind_of(self.data, _table())
        return f"{100 * self.share:g}% of every batch from {kind}{f' ({told})' if told else ''}"

    def count(self, batch: int) -> int:
        """How many images of a batch are extra."""
        return int(self.share * batch + 0.5)

    def read(self, main: Data) -> Split:
        """The extra images for a dataset. Raises a clear error where they cannot be read."""
        match self.data:
            case Given(name=name):
                raise RecipeError(
                    f'extra: given from Python as "{name}", so the recipe does not hold it; '
                    "give it again, also to resume: train(recipe, out, data=Data(..., extra=...))"
                )
            case Npz():
                found = _training_images(self.data, main.classes)
            case _:
                whole = self.data.load()
                _check_classes(whole.classes, main.classes)
                found = whole.train
        return found


def check_fits(extra: Split, main: Data) -> None:
    """Raise ValueError unless extra images have the shape and the classes of a dataset."""
    got = tuple(extra.fetch(torch.tensor([0])).shape[1:])
    if got != main.shape:
        raise ValueError(f"images: got shape {got}, expected {main.shape} as in {main.name}; resize them")
    highest = int(extra.labels.max())
    if highest >= len(main.classes):
        told = f"expected at most {len(main.classes) - 1}, as {main.name} has {len(main.classes)} classes"
        raise ValueError(f"labels: got {highest}, {told}; give data with the same classes")


def _training_images(spec: Npz, classes: Sequence[str]) -> Split:
    path = Path(spec.path).expanduser()
    _, found = read_arrays(path, ())
    pair = next((pair for pair in PAIRS if set(pair) <= set(found)), None)
    if pair is None:
        known = " or ".join(" and ".join(pair) for pair in PAIRS)
        raise ValueError(f"{path}: has {', '.join(found)}, expected {known}; save it under such names")
    arrays, _ = read_arrays(path, (*pair, "classes"))
    images, labels = (arrays[name] for name in pair)
    with named(f"{path}:"):
        names = class_names(arrays)
        if names is not None:
            _check_classes(names, classes)
        layout = recognise(pair[0], images) if spec.layout == "auto" else spec.layout
        if images.ndim != (3 if layout == "nhw" else 4):
            told = f'{pair[0]}: got shape {images.shape}, expected layout "{layout}"'
            raise ValueError(f'{told}; set layout to "nchw", "nhwc" or "nhw"')
        x = tensor_of("images", images)
        # Seen in another order and not copied, for there may be gigabytes of them.
        seen = {"nchw": x, "nhw": x.unsqueeze(1), "nhwc": x.movedim(-1, 1)}[layout]
        return Tensors(seen, tensor_of("labels", labels), len(classes))


def _check_classes(got: Sequence[str], expected: Sequence[str]) -> None:
    if len(got) != len(expected):
        raise ValueError(
            f"classes: got {len(got)}, expected {len(expected)}; give data with the same classes"
        )
    numbers = [str(number) for number in range(len(got))]
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one != other and numbers not in (list(got), list(expected)):
            raise ValueError(f'classes: got "{one}" as {number}, expected "{other}"; put them in its order')


@final
class ExtraBatches:
    """Batches of which a fixed number of images is extra, each found by its epoch and step, both from 1.

    Original and extra images come in passes, each pass in a random order of its own; what is too little for
    another batch is left out of a pass, so no image comes twice in a batch. Positions of extra images follow
    those of the original ones.
    """

    def __init__(self, split: Split, extra: Split, count: int, size: int, draws: Draws) -> None:
        for what, there, taken in (("original", split, size - count), ("extra", extra, count)):
            if not 1 <= taken <= len(there):
                raise ValueError(
                    f"a batch of {size} takes {taken} {what} images, expected 1 to {len(there)}, which there "
                    "are; change batch or extra.share"
                )
        self.split = Joined(split, extra)
        self.steps = Batches(split, size, draws).steps
        self._labels = self.split.labels
        self._original = _Deal(len(split), size - count, draws.at("order"))
        self._extra = _Deal(len(extra), count, draws.at("extra order"))

    def at(self, epoch: int, step: int) -> Batch:
        """The batch of a step: the original images, then the extra ones.

        Splits that can prepare images are told which ones come next.
        """
        if epoch < 1 or not 1 <= step <= self.steps:
            raise ValueError(
                f"batch: got epoch {epoch}, step {step}; expected epoch from 1, step 1 to {self.steps}"
            )
        t = (epoch - 1) * self.steps + step
        index = self._index(t)
        images, extra = self.split.fetch(index), index >= self._original.total
        batch = Batch(x=images, y=self._labels[index], index=index, extra=extra)
        for later in range(t + 1, t + 1 + AHEAD):
            self.split.expect(self._index(later))
        return batch

    def _index(self, t: int) -> Tensor:
        return torch.cat([self._original.at(t), self._original.total + self._extra.at(t)])


@final
class _Deal:
    """Hands of different positions, dealt in turns; shuffled when too few are left for another hand."""

    def __init__(self, total: int, hand: int, draws: Draws) -> None:
        self.total, self.hand, self.draws = total, hand, draws
        self._orders: dict[int, Tensor] = {}

    def at(self, t: int) -> Tensor:
        passes, turn = divmod(t - 1, self.total // self.hand)
        number = passes + 1
        if number not in self._orders:
            # Those of the steps ahead are kept beside that of the step itself.
            near = range(number - AHEAD, number + AHEAD + 1)
            self._orders = {of: order for of, order in self._orders.items() if of in near}
            self._orders[number] = self.draws.at(number).permutation(self.total)
        return self._orders[number][turn * self.hand : (turn + 1) * self.hand]
