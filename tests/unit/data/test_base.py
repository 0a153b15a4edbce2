from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from allrounder.data.base import Data, Subset, TensorSplit
from allrounder.rng import Rng


def tensors(n=12, k=3, c=1, h=2, w=2):
    x = torch.arange(n * c * h * w).view(n, c, h, w) % 256
    return TensorSplit(x.to(torch.uint8), torch.arange(n) % k, k)


def test_bytes_are_divided_by_255_when_fetched():
    split = TensorSplit(
        torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1), torch.tensor([0, 1, 0]), 2
    )
    x = split.fetch(torch.tensor([2, 1, 0]))
    assert x.dtype == torch.float32 and split.images.dtype == torch.uint8
    assert torch.equal(x.flatten(), torch.tensor([255.0, 51.0, 0.0]) / 255)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_are_kept_as_given_and_fetched_as_float32(dtype):
    x = torch.rand(4, 1, 2, 2, generator=Rng(0).generator()).to(dtype)
    split = TensorSplit(x, torch.zeros(4, dtype=torch.int32), 2)
    assert split.images.dtype == dtype and split.labels.dtype == torch.int64
    assert torch.equal(split.fetch(torch.arange(4)), x.float())


GOOD_X, GOOD_Y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(4, 2, 2), GOOD_Y, r"shape \(4, 2, 2\), expected \(n, c, h, w\).*layout \"nhw\""),
        (torch.zeros(0, 1, 2, 2), GOOD_Y[:0], r"shape \(0, 1, 2, 2\), expected .* none of them 0"),
        (GOOD_X.long(), GOOD_Y, r"images: got torch.int64, expected uint8 or a floating type"),
        (GOOD_X.bool(), GOOD_Y, r"images: got torch.bool"),
        (GOOD_X + float("nan"), GOOD_Y, r"NaN or infinite pixels, expected finite"),
        (GOOD_X - float("inf"), GOOD_Y, r"NaN or infinite pixels"),
        (GOOD_X + 255, GOOD_Y, r"pixels from 255 to 255, expected \[0, 1\]; divide by 255, or give uint8"),
        (GOOD_X - 0.5, GOOD_Y, r"pixels from -0.5 to -0.5, expected \[0, 1\]; undo any normalisation"),
        (GOOD_X, GOOD_Y[:3], r"labels: got 3 for 4 images, expected one for each"),
        (GOOD_X, GOOD_Y.float(), r"labels: got torch.float32, expected whole numbers; convert"),
        (GOOD_X, GOOD_Y.bool(), r"labels: got torch.bool, expected whole numbers"),
        (GOOD_X, GOOD_Y[:, None], r"labels: got shape \(4, 1\), expected \(n,\)"),
        (GOOD_X, GOOD_Y + 1, r"labels: got numbers from 1 to 2, expected 0 to 1; number the classes from 0"),
        (GOOD_X, GOOD_Y - 1, r"labels: got numbers from -1 to 0, expected 0 to 1"),
    ],
)
def test_wrong_images_and_labels_raise_an_error(x, y, message):
    with pytest.raises(ValueError, match=message):
        TensorSplit(x, y, 2)


def test_one_nan_pixel_raises_an_error():
    x = torch.zeros(50, 3, 8, 8)
    x[31, 2, 7, 1] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        TensorSplit(x, torch.zeros(50, dtype=torch.int64), 2)


def test_a_subset_is_a_view_by_position():
    whole, index = tensors(), torch.tensor([7, 2, 11])
    part = Subset(whole, index)
    assert len(part) == 3 and torch.equal(part.labels, whole.labels[index])
    assert torch.equal(part.fetch(torch.tensor([2, 0])), whole.fetch(torch.tensor([11, 7])))
    nested = Subset(part, torch.tensor([1]))
    assert torch.equal(nested.fetch(torch.tensor([0])), whole.fetch(torch.tensor([2])))


@pytest.mark.parametrize("index", [[12], [-1], []])
def test_subset_refuses_positions_outside_the_split(index):
    with pytest.raises(ValueError, match="expected positions from 0 to 11"):
        Subset(tensors(), torch.tensor(index, dtype=torch.int64))


X, Y = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2])


def test_the_layouts_give_the_same_images():
    one = Data.from_arrays("own", X, Y, X, Y, layout="nhwc")
    two = Data.from_arrays(
        "own", X.transpose(0, 3, 1, 2), Y, torch.tensor(X).permute(0, 3, 1, 2), torch.tensor(Y)
    )
    grey = Data.from_arrays("own", X[..., 0], Y, X[..., 0], Y, layout="nhw")
    every = torch.arange(6)
    assert one.shape == two.shape == (3, 4, 5) and grey.shape == (1, 4, 5)
    assert torch.equal(one.train.fetch(every), two.train.fetch(every))
    assert torch.equal(one.test.fetch(every), two.test.fetch(every))
    assert torch.equal(one.train.fetch(every)[:, :1], grey.train.fetch(every))
    assert torch.equal(one.train.fetch(every), torch.tensor(X).permute(0, 3, 1, 2) / 255)


def test_without_names_the_classes_are_the_numbers_of_the_training_labels():
    assert Data.from_arrays("own", X, Y, X[:1], Y[:1], layout="nhwc").classes == ("0", "1", "2")


def test_named_classes_may_be_absent_from_training():
    assert Data.from_arrays("own", X, Y, X, Y, ["a", "b", "c", "d"], "nhwc").classes == ("a", "b", "c", "d")


@pytest.mark.parametrize("kind", [">f4", "<f8", "f2", "longdouble"])
def test_float_arrays_of_any_order_and_of_torch_widths_are_read(kind):
    x = (X / 255).astype(kind)
    if kind == "longdouble":
        with pytest.raises(ValueError, match=r"train images: got dtype .*, expected numbers"):
            Data.from_arrays("own", x, Y, x, Y, layout="nhwc")
    else:
        got = Data.from_arrays("own", x, Y, x, Y, layout="nhwc").train.fetch(torch.arange(6))
        assert torch.equal(got, torch.tensor(x.astype("=f4")).permute(0, 3, 1, 2))


def test_read_only_and_reversed_arrays_are_read_without_a_warning():
    x = X.copy()
    x.flags.writeable = False
    data = Data.from_arrays("own", x, Y, x[::-1], Y[::-1].astype(np.uint16), layout="nhwc")
    assert torch.equal(data.train.fetch(torch.tensor([0])), data.test.fetch(torch.tensor([5])))
    assert data.test.labels.tolist() == Y[::-1].tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y_train": Y + 1}, r"train labels: got 3 numbers from 1 to 3, expected 0 to 2; number the"),
        ({"y_train": Y * 2}, r"train labels: got 3 numbers from 0 to 4"),
        (
            {"y_test": Y + 1},
            r"test labels: got numbers from 1 to 3, expected 0 to 2; .* name them all in classes",
        ),
        ({"y_train": Y.astype(float)}, r"train labels: got torch.float64, expected whole numbers"),
        ({"y_train": Y.astype(str)}, r"train labels: got dtype <U\d+, expected numbers; convert"),
        ({"x_test": X.astype(object)}, r"test images: got dtype object, expected numbers"),
        ({"x_test": X[:, :3]}, r"got shape \(3, 4, 5\) in train and \(3, 3, 5\) in test, expected the same"),
        ({"x_train": X[..., 0]}, r"train images: got shape \(6, 4, 5\), expected 4 dimensions .*\"nhwc\""),
        ({"layout": "nhw"}, r"train images: .* expected 3 dimensions for layout \"nhw\"; set layout"),
        ({"classes": ["a", "b"]}, r"train labels: got numbers from 0 to 2, expected 0 to 1"),
        ({"classes": ["a", "b", "b"]}, r"classes: got \('a', 'b', 'b'\), expected two or more different"),
        ({"y_train": Y * 0, "y_test": Y * 0}, r"classes: got \('0',\), expected two or more"),
    ],
)
def test_wrong_arrays_are_refused_and_named(given, message):
    right: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "layout": "nhwc"}
    with pytest.raises(ValueError, match=message):
        Data.from_arrays("own", **{**right, **given})


def test_data_built_from_splits_is_checked_against_its_classes():
    with pytest.raises(ValueError, match="test labels: got numbers from 0 to 2, expected 0 to 1"):
        Data("own", tensors(k=2), tensors(k=3), ("a", "b"))
