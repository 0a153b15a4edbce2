"""MNIST, Fashion-MNIST, CIFAR and SVHN, read from the formats of their authors."""

from __future__ import annotations

import base64
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.cifar import Cifar10, Cifar100
from allrounder.data.datasets.class_names import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from allrounder.data.datasets.mnist import CLOTHES, FashionMnist, Mnist
from allrounder.data.datasets.svhn import Svhn, read_mat
from allrounder.data.files.mat import read_mat_arrays
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.errors import DataError
from tests.support import formats
from tests.support.formats import random_images
from tests.support.packed import read_shared
from tests.support.paths import PROJECT

ROOT = PROJECT
GREY = random_images(40, (28, 28), 10), random_images(20, (28, 28), 10, seed=1)
COLOUR = random_images(40, (3, 32, 32), 10), random_images(20, (3, 32, 32), 10, seed=1)
CRASHING_MAT = (
    "c-r%I4DoSvQZUssQ1EpO(M`+DNmU5QNi0drFUqx2D9A6)tk6+#E=o--Nlj76&$ChpDNR-I%P&(fG*>V(ure^RGBp7*jLaCw0F0"
    "i#d_Zae5VHX>2S^Ai#frpd0@I8P5kMNG-U3NI9~SkDNapaMnF~^HfTW*=fPMiWD-nx6PBeW?aD9vnl??xZfQf;Ti-7?EmRKD%"
)
"""A file of X and y that ends a process in which scipy 1.17 reads it."""
HUNDRED: Any = tuple((x, np.arange(len(x)) * 7 % 100, np.arange(len(x)) % 20) for x, _ in COLOUR)


def holds(data: Data, train: Any, test: Any) -> None:
    """That a dataset holds these images as bytes, and these labels."""
    for split, (x, y) in ((data.train, train), (data.test, test)):
        images = split.images  # pyright: ignore[reportAttributeAccessIssue]
        assert images.dtype == torch.uint8
        assert np.array_equal(images.numpy(), x[:, None] if x.ndim == 3 else x)
        assert np.array_equal(split.labels.numpy(), y)


def unpack(folder: Path, members: dict[str, bytes], flat: bool = False) -> None:
    for name, raw in members.items():
        path = folder / (Path(name).name if flat else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("cls", [Mnist, FashionMnist])
def test_idx_files_are_read_packed_or_not(tmp_path, cls, packed):
    formats.write_idx(tmp_path, *GREY, packed=packed)
    data = cls(folder=str(tmp_path)).load()
    holds(data, *GREY)
    assert data.name == {Mnist: "mnist", FashionMnist: "fashion-mnist"}[cls]
    assert data.classes == {Mnist: tuple("0123456789"), FashionMnist: CLOTHES}[cls]


MEMBERS: dict[str, tuple[type[DataSpec], str, dict[str, bytes], Any]] = {
    "10 binary": (Cifar10, "cifar-10-binary.tar.gz", formats.cifar10_binary(*COLOUR), COLOUR),
    "10 python": (Cifar10, "cifar-10-python.tar.gz", formats.cifar10_python(*COLOUR), COLOUR),
    "100 binary": (Cifar100, "cifar-100-binary.tar.gz", formats.cifar100_binary(*HUNDRED), HUNDRED),
    "100 python": (Cifar100, "cifar-100-python.tar.gz", formats.cifar100_python(*HUNDRED), HUNDRED),
}


@pytest.mark.parametrize("how", ["archive", "unpacked", "flat"])
@pytest.mark.parametrize("which", MEMBERS)
def test_cifar_is_read_from_both_archives_packed_or_unpacked(tmp_path, which, how):
    cls, archive, members, (train, test) = MEMBERS[which]
    if how == "archive":
        formats.write_tar(tmp_path / archive, members)
    else:
        unpack(tmp_path, members, flat=how == "flat")
    data = cls(folder=str(tmp_path)).load()  # pyright: ignore[reportCallIssue]
    holds(data, train[:2], test[:2])
    assert data.classes == (CIFAR10 if cls is Cifar10 else CIFAR100_FINE)


@pytest.mark.parametrize("which", ["100 binary", "100 python"])
def test_cifar100_has_coarse_labels_too(tmp_path, which):
    _, archive, members, (train, test) = MEMBERS[which]
    formats.write_tar(tmp_path / archive, members)
    data = Cifar100(folder=str(tmp_path), labels="coarse").load()
    holds(data, (train[0], train[2]), (test[0], test[2]))
    assert data.classes == CIFAR100_COARSE and len(data.classes) == 20


def test_the_names_in_the_archive_are_kept(tmp_path):
    names = [f"class-{number}" for number in range(100)]
    formats.write_tar(
        tmp_path / "a" / "cifar-100-binary.tar.gz", formats.cifar100_binary(HUNDRED[0], HUNDRED[1], names)
    )
    formats.write_tar(
        tmp_path / "b" / "cifar-100-python.tar.gz", formats.cifar100_python(HUNDRED[0], HUNDRED[1], names)
    )
    for folder in "ab":
        assert Cifar100(folder=str(tmp_path / folder)).load().classes == tuple(names)
    formats.write_tar(
        tmp_path / "a" / "cifar-100-binary.tar.gz",
        formats.cifar100_binary(HUNDRED[0], HUNDRED[1], names[:99]),
    )
    with pytest.raises(
        ValueError, match=r"fine_label_names.txt names 99 classes, expected 100; get it again"
    ):
        Cifar100(folder=str(tmp_path / "a")).load()


def test_svhn_label_10_is_class_0(tmp_path):
    formats.write_svhn(tmp_path, *COLOUR)
    data = Svhn(folder=str(tmp_path)).load()
    holds(data, *COLOUR)
    assert data.classes == tuple("0123456789") and 0 in data.train.labels


def test_dataset_without_a_folder_is_read_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path))
    formats.write_idx(tmp_path / "fashion-mnist", *GREY)
    holds(FashionMnist().load(), *GREY)
    assert load_eval_data("Fashion_MNIST").classes == CLOTHES


@pytest.mark.parametrize(
    ("cls", "name", "file"),
    [
        (Mnist, "mnist", "train-images-idx3-ubyte.gz"),
        (FashionMnist, "fashion-mnist", "train-images-idx3-ubyte.gz"),
        (Cifar10, "cifar10", "cifar-10-binary.tar.gz"),
        (Cifar100, "cifar100", "cifar-100-binary.tar.gz"),
        (Svhn, "svhn", "train_32x32.mat, test_32x32.mat"),
    ],
)
def test_a_missing_file_is_named_with_its_folder_and_the_command(tmp_path, monkeypatch, cls, name, file):
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as raised:
        cls().load()
    assert str(raised.value) == (
        f"{tmp_path / name}: has no {file}; put it there, or get it with: allrounder data get {name}"
    )
    with pytest.raises(
        FileNotFoundError, match=rf"elsewhere: has no .* \(which puts it into {tmp_path / name}\)"
    ):
        cls(folder=str(tmp_path / "elsewhere")).load()
    assert not list(tmp_path.iterdir())


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_truncated_idx_file_raises_an_error(tmp_path, packed, part):
    formats.write_idx(tmp_path, *GREY, packed=packed)
    file = tmp_path / (f"{part}.gz" if packed else part)
    whole = file.read_bytes()
    for keep in (len(whole) - 9, len(whole) // 2, 3):
        file.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=rf"{part}.*(cut short|holds|begins with).*get it again"):
            Mnist(folder=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "begins with nothing, expected 00000803"),
        (b"<html>not here</html>", "begins with 3c68746d, expected 00000803"),
        (formats.idx_bytes(np.zeros(5)), "begins with 00000801, expected 00000803 of an idx file with 3"),
        (formats.idx_bytes(GREY[0][0]) + b"x", "holds more bytes, expected 31360 for shape"),
        (
            bytes((0, 0, 8, 3)) + b"\xff" * 12,
            r"has the shape \(4294967295, .* expected at most 1073741824 bytes",
        ),
        (formats.idx_bytes(GREY[0][0][:39]), "train labels: got 40 for 39 images"),
    ],
)
def test_a_wrong_idx_file_is_refused(tmp_path, raw, message):
    formats.write_idx(tmp_path, *GREY)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        Mnist(folder=str(tmp_path)).load()


@pytest.mark.parametrize("keep", [0, 20, 0.5, 0.99])
@pytest.mark.parametrize("which", MEMBERS)
def test_truncated_archive_raises_an_error(tmp_path, which, keep):
    cls, archive, members, _ = MEMBERS[which]
    formats.write_tar(tmp_path / archive, members)
    damage(tmp_path / archive, lambda whole: whole[: int(keep * len(whole)) if keep < 1 else keep])
    with pytest.raises((ValueError, FileNotFoundError), match=rf"{archive}: (cut short|has no ).*get it "):
        cls(folder=str(tmp_path)).load()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("which", ["10 binary", "100 binary"])
def test_truncated_binary_file_raises_an_error(tmp_path, which):
    cls, _, members, _ = MEMBERS[which]
    unpack(tmp_path, members)
    file = next(tmp_path / name for name in members if "test" in name)
    damage(file, lambda whole: whole[:-1])
    with pytest.raises(ValueError, match=rf"{file.name} is cut short: got \d+ bytes, expected 307. for each"):
        cls(folder=str(tmp_path)).load()  # pyright: ignore[reportCallIssue]
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{file.name} is cut short: got 0 bytes"):
        cls(folder=str(tmp_path)).load()  # pyright: ignore[reportCallIssue]
    file.unlink()
    with pytest.raises(FileNotFoundError, match=rf"has no {file.name}; .*allrounder data get"):
        cls(folder=str(tmp_path)).load()  # pyright: ignore[reportCallIssue]


def test_label_above_the_number_of_classes_raises_an_error(tmp_path):
    (x, y), test = COLOUR
    formats.write_tar(tmp_path / "cifar-10-binary.tar.gz", formats.cifar10_binary((x, y + 1), test))
    with pytest.raises(
        ValueError, match=r"binary.tar.gz: train labels: got numbers from 1 to 10, expected 0 to 9"
    ):
        Cifar10(folder=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"labels": [1] * 40}, r"test_batch has no uint8 array data of shape \(n, 3072\)"),
        ({"data": COLOUR[1][0].reshape(20, -1)}, "test_batch has no list of numbers labels"),
        ({"data": COLOUR[1][0].reshape(20, -1), "labels": ["a"]}, "no list of numbers labels"),
        (
            {"data": COLOUR[1][0].reshape(20, -1), "labels": [1]},
            "has 1 labels for 20 images, expected one each",
        ),
        ({"data": COLOUR[1][0].reshape(-1, 1024), "labels": [1]}, "has no uint8 array data"),
    ],
)
def test_a_wrong_table_in_an_archive_for_python_is_refused(tmp_path, table, message):
    members = formats.cifar10_python(*COLOUR)
    members["cifar-10-batches-py/test_batch"] = formats.python2_pickle(table)
    formats.write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(ValueError, match=message):
        Cifar10(folder=str(tmp_path)).load()


def test_pickle_with_a_call_is_refused_and_named(tmp_path):
    members = formats.cifar10_python(*COLOUR)
    members["cifar-10-batches-py/data_batch_3"] = b"\x80\x02cos\nsystem\nU\x04trueq\x01\x85R."
    formats.write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(ValueError, match=r'python.tar.gz: data_batch_3 names "os.system", which plain data'):
        Cifar10(folder=str(tmp_path)).load()


def test_a_wrong_mat_file_is_refused(tmp_path):
    from scipy.io import savemat

    formats.write_svhn(tmp_path, *COLOUR)
    file = tmp_path / "test_32x32.mat"
    whole = file.read_bytes()
    for keep in (len(whole) // 2, 10, 0):
        file.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"test_32x32.mat: (cut short|has no X)"):
            Svhn(folder=str(tmp_path)).load()
    x = COLOUR[1][0].transpose(2, 3, 1, 0)
    for table, message in (
        ({"X": x}, "has no X or no y"),
        ({"X": x, "y": np.arange(5)}, r"X of shape \(32, 32, 3, 20\) and type uint8, y of shape \(1, 5\)"),
        ({"X": x / 255, "y": np.arange(20)}, "type float64"),
        ({"X": x, "y": np.arange(20)}, "holds the digit 11, expected 0 to 10"),
    ):
        savemat(file, table)
        with pytest.raises(ValueError, match=message):
            Svhn(folder=str(tmp_path)).load()


@pytest.mark.parametrize("is_packed", [False, True])
def test_arrays_of_every_type_are_read_as_scipy_reads_them(tmp_path, is_packed):
    from scipy.io import loadmat, savemat

    kinds = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "?")
    arrays = {f"a{kind.strip('?')}": np.arange(24).reshape(2, 3, 4).astype(kind) for kind in kinds}
    arrays |= {"row": np.arange(3), "none": np.zeros((0, 3)), "y": np.arange(20.0)}
    skipped = {"text": "words", "cell": np.array([[1, "a"]], object), "z": np.ones(2, complex)}
    savemat(tmp_path / "own.mat", arrays | skipped, do_compression=is_packed)
    read = read_mat_arrays(tmp_path / "own.mat", {*arrays, *skipped}, 2**20)
    expected = loadmat(tmp_path / "own.mat")
    assert set(read) == set(arrays)
    for name, array in read.items():
        assert array.dtype == expected[name].dtype and np.array_equal(array, expected[name]), name


def test_numbers_that_are_stored_in_fewer_bytes_than_their_class_are_read(tmp_path):
    """As in the files of SVHN, whose digits are of class double."""
    from scipy.io import savemat

    savemat(tmp_path / "own.mat", {"y": np.arange(20, dtype=np.uint8)})
    content = bytearray((tmp_path / "own.mat").read_bytes())
    assert content[144] == 9  # the class, of 8-bit numbers
    content[144] = 6
    (tmp_path / "own.mat").write_bytes(content)
    y = read_mat_arrays(tmp_path / "own.mat", ["y"], 2**20)["y"]
    assert y.dtype == np.float64 and y.tolist() == [list(range(20))]


def test_a_mat_file_with_a_false_size_takes_little_memory(tmp_path):
    (tmp_path / "a.mat").write_bytes(bytes(124) + b"\0\x01IM" + bytes((14, 0, 0, 0, 0, 0, 0, 63)) + bytes(9))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"damaged .got 9 bytes, expected 1056964608"):
            read_mat(tmp_path / "a.mat")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_numbers_of_a_larger_class_count_with_its_bytes(tmp_path):
    write_element(tmp_path / "a.mat", 6, bytes(1000))
    assert read_mat_arrays(tmp_path / "a.mat", ["y"], 9000)["y"].nbytes == 8000
    with pytest.raises(ValueError, match="more than 7000 bytes"):
        read_mat_arrays(tmp_path / "a.mat", ["y"], 7000)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(tmp_path, order):
    write_element(tmp_path / "a.mat", 9, bytes(range(7)), order)
    assert read_mat_arrays(tmp_path / "a.mat", ["y"], 2**10)["y"].tolist() == [list(range(7))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:124] + b"\0\x02" + raw[126:], "version 7.3 is saved as version 5 with -v7"),
        (lambda raw: raw[:50], "got 50 bytes, expected 128"),
        (lambda raw: pack(raw, raw[128:] * 2), "a compressed element has 72 bytes behind its array"),
        (lambda raw: pack(raw, raw[128:], missing=5), "another length than its header says"),
    ],
)
def test_a_mat_file_of_another_form_is_refused(tmp_path, change, message):
    write_element(tmp_path / "a.mat", 9, bytes(8))
    (tmp_path / "a.mat").write_bytes(change((tmp_path / "a.mat").read_bytes()))
    with pytest.raises(ValueError, match=message):
        read_mat_arrays(tmp_path / "a.mat", ["y"], 2**10)


def write_element(file, matlab_class, numbers, order="<"):
    """Write a file with the row y of bytes, of a class of numbers."""
    content = struct.pack(f"{order}4I", 6, 8, matlab_class, 0)
    content += struct.pack(f"{order}2I2i", 5, 8, 1, len(numbers))
    content += struct.pack(f"{order}2I8s", 1, 1, b"y")
    content += struct.pack(f"{order}2I", 2, len(numbers)) + numbers + bytes(-len(numbers) % 8)
    mark = {"<": b"\0\x01IM", ">": b"\x01\0MI"}[order]
    file.write_bytes(bytes(124) + mark + struct.pack(f"{order}2I", 14, len(content)) + content)


def pack(raw, elements, missing=0):
    """The header of a file, and one compressed element whose size counts more bytes than it has."""
    packed = zlib.compress(elements)
    return raw[:128] + struct.pack("<2I", 15, len(packed) + missing) + packed + bytes(missing)


def test_a_mat_file_that_ends_a_process_with_scipy_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(zlib.decompress(base64.b85decode(CRASHING_MAT)))
    with pytest.raises(DataError, match=r"a.mat: cut short or damaged \(y has no numbers, or no shape\)"):
        read_mat(tmp_path / "a.mat")


def real(name: str) -> Path:
    folder = formats.shared_data_folder(ROOT)
    if folder is None:
        pytest.skip("no shared/data folder beside the project")
    return folder / name


def packed(name: str, count: int) -> tuple[Any, Any]:
    split = read_shared(real(name)).test
    x = split.images[:count].numpy()  # pyright: ignore[reportAttributeAccessIssue]
    return x, split.labels[:count].numpy()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_images_are_unchanged_by_idx_files(tmp_path, name):
    with np.load(real(f"{name}.npz")) as file:
        test = file["x_test"], file["y_test"]
    formats.write_idx(tmp_path, (test[0][:500], test[1][:500]), test)
    data = (Mnist if name == "mnist" else FashionMnist)(folder=str(tmp_path)).load()
    holds(data, (test[0][:500], test[1][:500]), test)
    assert torch.bincount(data.test.labels).min() > 800


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_real_images_are_unchanged_by_cifar10_archives(tmp_path, kind):
    x, y = packed("cifar10_test.npz", 2000)
    write = formats.cifar10_binary if kind == "binary" else formats.cifar10_python
    formats.write_tar(tmp_path / f"cifar-10-{kind}.tar.gz", write((x, y), (x[:500], y[:500])))
    data = Cifar10(folder=str(tmp_path)).load()
    holds(data, (x, y), (x[:500], y[:500]))
    assert data.classes == read_shared(real("cifar10_test.npz")).classes == CIFAR10


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_real_images_are_unchanged_by_cifar100_archives(tmp_path, kind):
    x, y = packed("cifar100_test.npz", 1000)
    with np.load(real("cifar100_test.npz")) as file:
        coarse, names = file["y_coarse"][:1000], tuple(file["classes"].tolist())
    write = formats.cifar100_binary if kind == "binary" else formats.cifar100_python
    formats.write_tar(
        tmp_path / f"cifar-100-{kind}.tar.gz", write((x, y, coarse), (x[:300], y[:300], coarse[:300]))
    )
    data = Cifar100(folder=str(tmp_path)).load()
    holds(data, (x, y), (x[:300], y[:300]))
    assert data.classes == names == CIFAR100_FINE
    grouped = Cifar100(folder=str(tmp_path), labels="coarse").load()
    assert np.array_equal(grouped.train.labels.numpy(), coarse)
    # A few groups that everybody knows: the numbers and the names of the coarse classes fit the fine ones.
    for fine, group in (
        ("dolphin", "aquatic_mammals"),
        ("oak_tree", "trees"),
        ("baby", "people"),
        ("rose", "flowers"),
    ):
        rows = np.flatnonzero(y == names.index(fine))
        assert len(rows) and {CIFAR100_COARSE[label] for label in coarse[rows]} == {group}


def test_real_images_are_unchanged_by_svhn_files(tmp_path):
    x, y = packed("svhn_test_5k.npz", 800)
    formats.write_svhn(tmp_path, (x, y), (x[:200], y[:200]))
    holds(Svhn(folder=str(tmp_path)).load(), (x, y), (x[:200], y[:200]))


def test_the_packed_cifar_test_set_is_the_plain_one():
    full, head = read_shared(real("cifar10_test.npz")), read_shared(real("cifar10_test_head.npz"))
    assert len(full.test) == 10_000 and full.shape == (3, 32, 32) and full.classes[3] == "cat"
    every = torch.arange(len(head.test))
    assert torch.equal(full.test.fetch(every), head.test.fetch(every))
    assert torch.equal(full.test.labels[every], head.test.labels)
