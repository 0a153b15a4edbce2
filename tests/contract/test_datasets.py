"""What every dataset keeps, and then what each of them keeps besides."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from allrounder.config.fields import OneOf, adapter
from allrounder.data import DATASETS
from allrounder.data.base import Data, DataSpec, Split
from allrounder.data.batches import Batches
from allrounder.data.datasets import embedded
from allrounder.data.datasets.embedded import Embedded, read_embedded
from allrounder.data.datasets.npz import InMemory, Npz
from allrounder.data.splits import hold_out
from allrounder.errors import DataError, RecipeError
from allrounder.rng import Rng
from tests.support import formats
from tests.support.paths import PROJECT

ROOT = PROJECT
ASSET = Path(embedded.__file__).with_name("embedded.npz")


def npz(folder: Path) -> dict[str, str]:
    draws = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 40), ("test", 20)):
        arrays[f"x_{part}"] = draws.integers(0, 256, (n, 6, 6, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(n) % 4
    np.savez(folder / "own.npz", **arrays)
    return {"path": str(folder / "own.npz")}


def folder(root: Path, inner: str = "") -> dict[str, str]:
    """Bright noise in three classes; the first and the last image differ."""
    draws = np.random.default_rng(1)
    for part, n in (("train", 14), ("val", 4)):
        for k in range(3):
            place = root / part / f"n0000000{k}" / (inner if part == "train" else "")
            place.mkdir(parents=True)
            for i in range(n):
                pixels = draws.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i:02}.png")
    return {"path": str(root)}


def official(folder: Path, write: Callable[..., None], shape: tuple[int, ...]) -> dict[str, str]:
    write(folder, formats.random_images(40, shape, 4), formats.random_images(20, shape, 4, seed=1))
    return {"folder": str(folder)}


def cifar10(folder: Path, train: Any, test: Any) -> None:
    formats.write_tar(folder / "cifar-10-binary.tar.gz", formats.cifar10_binary(train, test))


def cifar100(folder: Path, train: Any, test: Any) -> None:
    parts = ((*train, train[1]), (*test, test[1]))
    formats.write_tar(folder / "cifar-100-binary.tar.gz", formats.cifar100_binary(*parts))


FIELDS: dict[str, Callable[[Path], dict[str, str]]] = {
    "embedded": lambda folder: {},
    "folder": folder,
    "imagenet": lambda root: {"folder": folder(root)["path"]},
    "tiny-imagenet": lambda root: {"folder": folder(root, "images")["path"]},
    "npz": npz,
    "python": lambda folder: {"name": "own"},
    "mnist": lambda folder: official(folder, formats.write_idx, (28, 28)),
    "fashion-mnist": lambda folder: official(folder, formats.write_idx, (28, 28)),
    "cifar10": lambda folder: official(folder, cifar10, (3, 32, 32)),
    "cifar100": lambda folder: official(folder, cifar100, (3, 32, 32)),
    "svhn": lambda folder: official(folder, formats.write_svhn, (3, 32, 32)),
}
"""How to make each kind of dataset for the test; a new one adds a line."""


@pytest.fixture(params=list(DATASETS))
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> DataSpec:
    return DATASETS[request.param](**FIELDS[request.param](tmp_path))


@pytest.fixture(params=[kind for kind in DATASETS if kind != "python"])
def loadable(request: pytest.FixtureRequest, tmp_path: Path) -> DataSpec:
    return DATASETS[request.param](**FIELDS[request.param](tmp_path))


@pytest.fixture
def data(loadable: DataSpec) -> Data:
    return loadable.load()


def test_a_spec_is_a_frozen_value_that_a_table_reads_and_writes(spec):
    kind = OneOf(lambda: DATASETS)
    assert kind.decode(kind.encode(spec)) == spec
    assert hash(spec) == hash(kind.decode(kind.encode(spec)))
    with pytest.raises(AttributeError):
        spec.path = "elsewhere"
    with pytest.raises(ValueError, match="unknown\n  Unexpected keyword"):
        adapter(type(spec)).validate_python({"unknown": 1})


def test_the_first_line_of_its_docstring_is_a_sentence(spec):
    first = (type(spec).__doc__ or "").splitlines()[0]
    assert first.endswith(".") and len(first) <= 110


def test_splits_hold_the_images_that_the_data_promises(data):
    for split in (data.train, data.test):
        assert isinstance(split, Split)
        y = split.labels
        assert y.dtype == torch.int64 and y.shape == (len(split),)
        assert y.min() >= 0 and y.max() < len(data.classes)
        x = split.fetch(torch.tensor([len(split) - 1, 0, 0]))
        assert x.dtype == torch.float32 and x.is_contiguous() and x.shape == (3, *data.shape)
        assert x.min() >= 0 and x.max() <= 1 and x.max() > 0.5
        assert torch.equal(x[1], x[2]) and not torch.equal(x[0], x[1])


def test_loading_twice_gives_the_same(loadable, data):
    again = loadable.load()
    assert again.name == data.name and again.classes == data.classes
    for one, two in ((data.train, again.train), (data.test, again.test)):
        assert torch.equal(one.labels, two.labels)
        assert torch.equal(one.fetch(torch.arange(10)), two.fetch(torch.arange(10)))


def test_fetched_images_are_a_copy(data):
    index = torch.arange(3)
    data.train.fetch(index).zero_()
    assert data.train.fetch(index).sum() > 0


def test_it_can_be_cut_and_batched(data):
    rest, validation = hold_out(data.train, 20, Rng(0))
    assert len(rest) + len(validation) == len(data.train)
    batch = Batches(rest, 16, Rng(0)).at(1, 1)
    assert batch.x.shape == (16, *data.shape)
    assert torch.equal(batch.y, rest.labels[batch.index])


@pytest.fixture(scope="module")
def cut() -> Data:
    return Embedded().load()


def test_the_embedded_cut_is_balanced_and_named(cut):
    assert cut.name == "embedded" and cut.shape == (1, 28, 28)
    assert torch.bincount(cut.train.labels).tolist() == [400] * 10
    assert torch.bincount(cut.test.labels).tolist() == [100] * 10
    assert cut.train.labels[:20].tolist() == [*range(10), *range(10)]
    assert len(cut.classes) == 10 and cut.classes[0] == "T-shirt/top" and cut.classes[9] == "Ankle boot"


def test_embedded_pixels_span_the_box(cut):
    for split in (cut.train, cut.test):
        x = split.fetch(torch.arange(len(split)))
        assert x.min() == 0 and x.max() == 1 and 0.2 < x.mean() < 0.4


def test_no_embedded_image_comes_twice_and_no_test_image_is_in_training(cut):
    train = {image.numpy().tobytes() for image in cut.train.images}
    test = {image.numpy().tobytes() for image in cut.test.images}
    assert len(train) == 4000 and len(test) == 1000 and not train & test


def test_the_embedded_file_is_small():
    assert ASSET.stat().st_size <= 3_000_000


def test_a_damaged_embedded_file_is_told(tmp_path):
    with np.load(ASSET) as file:
        arrays = dict(file)
    assert embedded.digest_arrays(arrays) == embedded.SHA256
    arrays["x_test"][3, 14, 14] ^= 1
    np.savez(tmp_path / "flipped.npz", **arrays)
    (tmp_path / "short.npz").write_bytes(ASSET.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"flipped.npz: damaged \(SHA-256 .*install allrounder again"):
        read_embedded(tmp_path / "flipped.npz")
    for name in ("short.npz", "absent.npz"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read .*install allrounder again"):
            read_embedded(tmp_path / name)


@pytest.mark.slow
def test_the_script_makes_the_embedded_file_from_the_full_set(tmp_path):
    source = ROOT.parent / "shared" / "data" / "fashion_mnist.npz"
    if not source.exists():
        pytest.skip("the full Fashion-MNIST is not at ../shared/data/fashion_mnist.npz")
    spec = importlib.util.spec_from_file_location("make_embedded", ROOT / "scripts" / "make_embedded.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arrays = script.select_images(source)
    script.write_npz(arrays, tmp_path / "one.npz")
    script.write_npz(arrays, tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    # The compressed bytes may differ between versions of zlib; what they hold may not.
    with zipfile.ZipFile(tmp_path / "one.npz") as made, zipfile.ZipFile(ASSET) as kept:
        assert made.namelist() == kept.namelist()
        assert [m.date_time for m in made.infolist()] == [m.date_time for m in kept.infolist()]
        assert all(made.read(name) == kept.read(name) for name in kept.namelist())


X, Y = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2])
RIGHT: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X[:3], "y_test": Y[:3]}


@pytest.fixture
def load(tmp_path):
    def write_and_load(layout: Any = "auto", **arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return Npz(path=str(tmp_path / "own.npz"), layout=layout).load()

    return write_and_load


@pytest.mark.parametrize("shape", ["nhwc", "nchw", "nhw", "one channel last", "float"])
def test_an_npz_file_is_read_in_any_layout(load, shape):
    change = {
        "nhwc": lambda x: x,
        "nchw": lambda x: x.transpose(0, 3, 1, 2),
        "nhw": lambda x: x[..., 0],
        "one channel last": lambda x: x[..., :1],
        "float": lambda x: x / 255,
    }[shape]
    data = load(**{**RIGHT, "x_train": change(X), "x_test": change(X[:3])})
    assert data.name == "own" and data.classes == ("0", "1", "2") and len(data.test) == 3
    whole = torch.tensor(X).permute(0, 3, 1, 2) / 255
    expected = whole[:, :1] if shape in ("nhw", "one channel last") else whole
    assert torch.allclose(data.train.fetch(torch.arange(6)), expected, atol=1e-7)


def test_an_npz_file_may_name_its_classes(load):
    assert load(**RIGHT, classes=np.array(["cat", "dog", "emu", "fox"])).classes[1] == "dog"


@pytest.mark.parametrize("shape", [(6, 3, 8, 3), (6, 5, 8, 8), (6, 1, 3, 1)])
def test_an_ambiguous_shape_demands_a_layout(load, shape):
    x = np.zeros(shape, np.uint8)
    arrays = {**RIGHT, "x_train": x, "x_test": x[:3]}
    with pytest.raises(
        ValueError,
        match=r"own.npz: x_train: the layout of shape .* is ambiguous or unknown; set layout to \"nchw\"",
    ):
        load(**arrays)
    assert load("nchw", **arrays).shape == shape[1:]
    assert load("nhwc", **arrays).shape == (shape[3], *shape[1:3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y_train": Y + 0.5}, r"own.npz: train labels: got torch.float64, expected whole numbers"),
        ({"y_train": Y.astype(str)}, r"own.npz: train labels: got dtype <U"),
        (
            {"y_train": Y.astype(object)},
            r"own.npz: y_train cannot be read \(Object arrays .*save it again as plain numbers",
        ),
        ({"x_test": X[:3].astype(object)}, r"own.npz: x_test cannot be read"),
        ({"y_train": Y - 1}, r"own.npz: train labels: got 3 numbers from -1 to 1"),
        ({"y_test": Y[:3] + 3}, r"own.npz: test labels: got numbers from 3 to 5, expected 0 to 2"),
        ({"y_test": Y}, r"own.npz: test labels: got 6 for 3 images"),
        ({"x_train": X * np.nan}, r"own.npz: train images: got NaN or infinite pixels"),
        ({"x_train": X.astype(np.float32)}, r"own.npz: train images: .* expected \[0, 1\]; divide by 255"),
        ({"x_train": X.astype(np.int64)}, r"own.npz: train images: got torch.int64, expected uint8"),
        ({"x_train": X[0, 0]}, r"own.npz: x_train: the layout of shape \(5, 3\) is ambiguous or unknown"),
        ({"x_test": X[:3, ..., 0]}, r"own.npz: test images: got shape \(3, 4, 5\), expected 4 dimensions"),
        (
            {"classes": np.array([1, 2, 3])},
            r"own.npz: classes: got int64 of shape \(3,\), expected a list of",
        ),
        (
            {"classes": np.array(["a", "b"])},
            r"own.npz: train labels: got numbers from 0 to 2, expected 0 to 1",
        ),
    ],
)
def test_a_wrong_npz_file_is_refused_with_its_reason(load, given, message):
    with pytest.raises(ValueError, match=message):
        load(**{**RIGHT, **given})


def test_missing_arrays_are_named_with_those_that_are_there(load):
    with pytest.raises(ValueError, match=r"own.npz: no x_test, y_test \(it has: x_train, y_train, extra\)"):
        load(x_train=X, y_train=Y, extra=Y)


def test_a_missing_file_is_told_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"absent.npz: no such file \(looked from {tmp_path}\)"):
        Npz(path="absent.npz").load()


def test_a_truncated_or_damaged_file_is_told(tmp_path):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, **RIGHT)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"no archive at all" * 10):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"own.npz: not an .npz file, or one cut short; write it again"):
            Npz(path=str(path)).load()
    damaged = bytearray(whole)
    damaged[120:140] = bytes(20)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"own.npz: x_train cannot be read"):
        Npz(path=str(path)).load()


def test_a_single_array_is_no_archive(tmp_path):
    np.save(tmp_path / "own.npy", X)
    with pytest.raises(ValueError, match=r"own.npy: not an .npz file"):
        Npz(path=str(tmp_path / "own.npy")).load()


def test_data_given_from_python_must_be_given_again():
    with pytest.raises(RecipeError, match=r'given from Python as "faces".*give it again, also to resume'):
        InMemory(name="faces").load()
