"""Datasets that are Python objects: to evaluate on, to train on, and what is message of bad items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset
from torch.utils.data import Subset as Part

from allrounder.data.base import Data, Split
from allrounder.data.inputs.coerce import as_data, as_split
from allrounder.data.inputs.map_dataset import MapDatasetSplit
from allrounder.errors import DataError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from tests.support.evaluations import BATCH_SIZE, PGD, trained_network
from tests.support.networks import blobs
from tests.support.trainings import SOLO, go, recipe, remains

BLOBS = blobs(48, 12)
X, Y = BLOBS.train.fetch(torch.arange(48)), BLOBS.train.labels
BYTES = (255 * X).round().to(torch.uint8)


class Items(Dataset[Any]):
    """Somebody's dataset; it notes which items it was asked for."""

    def __init__(self, form: Callable[[Tensor], object] = lambda x: x, x: Tensor = X, y: Tensor = Y) -> None:
        self.form, self.x, self.y, self.asked = form, x, y, list[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, position: int) -> Any:
        self.asked.append(position)
        return self.form(self.x[position]), int(self.y[position])


class Listed(Items):
    """One that lists its labels, and names its classes."""

    classes = ("top", "middle", "bottom")

    @property
    def targets(self) -> object:
        return self.y.tolist()


FORMS: dict[str, Callable[[Tensor], object]] = {
    "bytes": lambda x: (255 * x).round().byte(),
    "an array of bytes": lambda x: (255 * x).round().byte().numpy(),
    "floats": lambda x: (255 * x).round() / 255,
    "an array of doubles": lambda x: ((255 * x).round().double() / 255).numpy(),
    "an image": lambda x: Image.fromarray((255 * x[0]).round().byte().numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_items_may_have_any_form(form):
    split = as_split(Items(FORMS[form]))
    assert isinstance(split, Split) and split.labels.tolist() == Y.tolist()
    x = split.fetch(torch.tensor([7, 0, 7]))
    assert x.dtype == torch.float32 and x.is_contiguous()
    torch.testing.assert_close(x, BYTES[[7, 0, 7]].float() / 255, rtol=0, atol=1e-7)


def test_coloured_images_are_channels_first():
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    split = as_split(Items(lambda x: Image.fromarray(pixels)))
    assert torch.equal(split.fetch(torch.tensor([3]))[0], torch.tensor(pixels).permute(2, 0, 1) / 255)


@pytest.mark.parametrize("name", ["targets", "labels"])
@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, np.array])
def test_items_are_not_read_where_labels_are_listed(name, kind):
    items = Items()
    setattr(items, name, kind(Y.tolist()))
    split = as_split(items)
    assert split.labels.tolist() == Y.tolist() and set(items.asked) == {0}
    split.fetch(torch.tensor([5, 9]))
    assert set(items.asked) == {0, 5, 9}


def test_a_part_of_a_dataset_has_the_labels_of_the_whole():
    items = Listed()
    split = as_split(Part(Part(items, range(10, 30)), [3, 1]))
    assert split.labels.tolist() == Y[[13, 11]].tolist() and set(items.asked) == {13}
    assert torch.equal(split.fetch(torch.tensor([1])), X[11:12])


@pytest.mark.parametrize("label", [int, torch.tensor, np.int64])
def test_a_list_of_pairs_is_a_dataset_if_every_label_is_one_number(label: Any):
    pairs = [(X[k], label(int(Y[k]))) for k in range(6)]
    split = as_split(pairs)
    assert isinstance(split, MapDatasetSplit) and split.labels.tolist() == Y[:6].tolist()
    assert torch.equal(split.fetch(torch.tensor([4])), as_split(X, Y).fetch(torch.tensor([4])))
    batches = as_split([(X[:4], Y[:4]), (X[4:6], Y[4:6])])
    assert not isinstance(batches, MapDatasetSplit) and batches.labels.tolist() == Y[:6].tolist()


def test_items_give_the_labels_if_none_are_listed():
    several: list[Any] = [TensorDataset(X, Y), ConcatDataset([Items(), Listed()]), Part(Items(), [4, 5])]
    for items in several:
        labels = [int(items[i][1]) for i in range(len(items))]
        assert as_split(items).labels.tolist() == labels


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x, y: x, "got a Tensor, expected a pair"),
        (lambda x, y: {"x": x, "label": y}, "got a mapping with the keys x, label, expected exactly one of"),
        (lambda x, y: {x, y}, "got a set, expected a pair .*; wrap the data"),
        (lambda x, y: (x,), "got a tuple, expected a pair"),
        (lambda x, y: (x.tolist(), y), "image: got a list, expected a tensor, an array, or an image"),
        (lambda x, y: (x[0], y), r"image: got shape \(8, 8\), expected \(c, h, w\)"),
        (lambda x, y: (255 * x, y), r"images: got pixels from .*expected \[0, 1\]; divide by 255"),
        (lambda x, y: (x - 0.5, y), "images: .*undo any normalisation"),
        (lambda x, y: (x / 0, y), "images: got NaN or infinite"),
        (lambda x, y: (x.int(), y), "images: got torch.int32, expected uint8 or a floating type"),
        (lambda x, y: (Image.new("P", (8, 8)), y), r'image: got mode "P", .*convert it with'),
        (lambda x, y: (x, float(y)), r"label: got \d.0, expected one whole number"),
        (lambda x, y: (x, "cat"), "label: got 'cat', expected one whole number"),
        (lambda x, y: (x, True), "label: got True, expected one whole number"),
        (lambda x, y: (x, torch.eye(3)[y]), "label: got tensor.*, expected one whole number"),
    ],
)
@pytest.mark.parametrize("position", [0, 5])
def test_bad_item_raises_an_error_with_its_position(give, message, position):
    class Bad(Items):
        def __getitem__(self, at: int) -> Any:
            return give(self.x[at], int(self.y[at])) if at == position else super().__getitem__(at)

    with pytest.raises(DataError, match=rf"^item {position}: {message}"):
        as_split(Bad())


def test_images_of_two_shapes_raise_an_error_with_the_position():
    items = Listed(lambda x: x[:, :7] if torch.equal(x, X[6]) else x)
    split = as_split(items)
    assert split.fetch(torch.arange(5)).shape == (5, 1, 8, 8)
    with pytest.raises(
        DataError, match=r"item 6: got an image of shape \(1, 7, 8\), expected \(1, 8, 8\) as item 0"
    ):
        split.fetch(torch.arange(8))


def test_label_that_differs_from_the_listed_one_raises_an_error():
    items = Items()
    items.targets = [*Y[:-1].tolist(), int(Y[-1] + 1) % 3]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match=r"item 47: has the label \d, but the dataset lists \d for it"):
        as_split(items).fetch(torch.tensor([0, 47]))


@pytest.mark.parametrize("listed", [["cat", "dog", "cow"], ["cat"] * 48, [0, 1], [0.5] * 48, [[0], [1, 2]]])
def test_attribute_labels_without_labels_is_ignored(listed):
    items = Items()
    items.labels = listed  # pyright: ignore[reportAttributeAccessIssue]
    assert as_split(items).labels.tolist() == Y.tolist() and set(items.asked) == set(range(48))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0, 1], r"labels: targets has shape \(2,\), expected \(48,\): one for each item"),
        ([0.5] * 48, "labels: got torch.float64, expected whole numbers"),
        (["cat"] * 48, "labels: got dtype <U3, expected numbers"),
    ],
)
def test_unusable_listed_labels_raise_an_error(targets, message):
    items = Items()
    items.targets = targets  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=message):
        as_split(items)


def test_random_items_are_refused():
    generator = torch.Generator().manual_seed(0)
    noisy = Items(lambda x: torch.rand(x.shape, generator=generator))
    with pytest.raises(
        ValueError, match="item 0 of the Items is another image every time; remove its random"
    ):
        as_split(noisy)
    with pytest.raises(ValueError, match="got a Items without items"):
        as_split(Items(x=X[:0]))


def test_map_dataset_gives_the_same_evaluation_as_arrays():
    options = EvalOptions(batch_size=BATCH_SIZE, check="skip")
    first = evaluate(trained_network(), X, Y, probes=[PGD], options=options)
    result = evaluate(trained_network(), Listed(), probes=[PGD], options=options)
    assert result.predicted[str(PGD)].tolist() == first.predicted[str(PGD)].tolist()


def test_data_accepts_splits_in_any_form():
    test = BLOBS.test.fetch(torch.arange(12)), BLOBS.test.labels
    loader = DataLoader(TensorDataset(*test), batch_size=5)
    for train_form in (
        Listed(),
        (X, Y),
        (X.numpy(), Y.numpy()),
        BLOBS.train,
        DataLoader(TensorDataset(X, Y)),
    ):
        data = as_data(train_form, loader, name="mine")
        named = isinstance(train_form, Listed)
        assert data.name == "mine" and data.classes == (Listed.classes if named else ("0", "1", "2"))
        assert torch.equal(data.train.fetch(torch.arange(48)), X) and torch.equal(data.test.labels, test[1])
    assert as_data((X, Y), Part(Listed(), range(9))).classes == Listed.classes
    assert as_data((X, Y), test, classes=["a", "b", "c", "d"]).classes == ("a", "b", "c", "d")
    assert isinstance(as_data(Part(Listed(), [0, 1, 2]), test).train, MapDatasetSplit)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (BLOBS, BLOBS.test, "train data: got a whole dataset, expected one split of it"),
        ((X, Y), (X, Y + 1), "test labels: got numbers from 1 to 3, expected 0 to 2"),
        ((X, 2 * Y), (X, Y), "train labels: got 3 numbers from 0 to 4, expected 0 to 2"),
        ((X, Y), (X[:, :, 1:], Y), r"got shape \(1, 8, 8\) in train and \(1, 7, 8\) in test"),
        (Items(lambda x: 300 * x), (X, Y), "train item 0: images: got pixels"),
        ((X, Y), X, "test labels: got none, expected one for each image"),
        ((X, Y), "cifar10", "test data: got a str, expected images and labels"),
    ],
)
def test_incompatible_splits_raise_an_error(train, test, message):
    with pytest.raises(ValueError, match=message):
        as_data(train, test)


def test_map_dataset_gives_the_same_training_as_arrays(tmp_path):
    value = recipe(SOLO, ("epochs = 3", "epochs = 1"))
    arrays = Data("mine", BLOBS.train, BLOBS.test, Listed.classes)
    objects = as_data(Listed(), (BLOBS.test.fetch(torch.arange(12)), BLOBS.test.labels), name="mine")
    runs = [go(value, tmp_path / name, data=data) for name, data in (("one", arrays), ("two", objects))]
    assert remains(runs[0].folder) == remains(runs[1].folder)


def test_loaders_give_the_same_training_as_arrays(tmp_path):
    value = recipe(SOLO, ("epochs = 3", "epochs = 1"))
    test = BLOBS.test.fetch(torch.arange(12)), BLOBS.test.labels
    arrays = as_data((X, Y), test, name="mine")
    loaders = as_data(
        DataLoader(TensorDataset(X, Y), batch_size=10),
        DataLoader(TensorDataset(*test), batch_size=5),
        name="mine",
    )
    runs = [go(value, tmp_path / name, data=data) for name, data in (("one", arrays), ("two", loaders))]
    assert remains(runs[0].folder) == remains(runs[1].folder)


@pytest.mark.parametrize("to_label", [int, np.int64, torch.tensor])
def test_a_list_of_mappings_with_one_label_each_is_a_dataset(to_label: Any):
    x, y = torch.rand(4, 1, 8, 8), [0, 2, 1, 2]
    items = [{"image": image, "label": to_label(label)} for image, label in zip(x, y, strict=True)]
    split = as_split(items)
    assert split.labels.tolist() == y and torch.equal(split.fetch(torch.arange(4)), x)
    batches = as_split([{"image": x, "label": torch.tensor(y)}])
    assert not isinstance(batches, MapDatasetSplit) and batches.labels.tolist() == y
