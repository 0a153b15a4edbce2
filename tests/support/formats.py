"""Write small datasets in the formats of their authors, from images (n, h, w) or (n, c, h, w)."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allrounder.data.datasets.class_names import CIFAR10
from allrounder.data.files.catalog import IDX_FILES

Images = NDArray[np.uint8]
Digits = NDArray[Any]


def random_images(n: int, shape: Sequence[int], classes: int, seed: int = 0) -> tuple[Images, Digits]:
    """Random images with labels 0 .. classes - 1 in turn."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % classes


def shared_data_folder(root: Path) -> Path | None:
    """The folder with real data beside the project, if there is one."""
    places = [parent / "shared" / "data" for parent in root.parents]
    return next((place for place in places if (place / "SHA256SUMS").is_file()), None)


def idx_bytes(array: NDArray[Any]) -> bytes:
    """The content of an idx file of uint8."""
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(
    folder: Path, train: tuple[Images, Digits], test: tuple[Images, Digits], packed: bool = True
) -> None:
    """Write the four files of MNIST or Fashion-MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX_FILES, (*train, *test), strict=True):
        raw = idx_bytes(array)
        path = folder / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(raw, 1) if packed else raw)


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    """Write an archive, compressed if its name ends with gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"compresslevel": 1} if path.name.endswith("gz") else {}
    with tarfile.open(path, "w:gz" if options else "w", **options) as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))


def cifar_records(x: Images, *labels: Digits) -> bytes:
    """The content of a binary CIFAR file: for each image its labels, then its pixels."""
    columns = [y.astype(np.uint8)[:, None] for y in labels]
    return np.concatenate([*columns, x.reshape(len(x), -1)], axis=1).tobytes()


def cifar10_binary(train: tuple[Images, Digits], test: tuple[Images, Digits]) -> dict[str, bytes]:
    """The members of the binary archive of CIFAR-10; the training set is split into five files."""
    parts = zip(np.array_split(train[0], 5), np.array_split(train[1], 5), strict=True)
    files = {f"data_batch_{number}.bin": cifar_records(x, y) for number, (x, y) in enumerate(parts, 1)}
    files |= {
        "test_batch.bin": cifar_records(*test),
        "batches.meta.txt": "\n".join([*CIFAR10, "", ""]).encode(),
    }
    return {f"cifar-10-batches-bin/{name}": raw for name, raw in {**files, "readme.html": b"<html>"}.items()}


def cifar100_binary(
    train: tuple[Images, Digits, Digits], test: tuple[Images, Digits, Digits], names: Sequence[str] = ()
) -> dict[str, bytes]:
    """The members of the binary archive of CIFAR-100; images, fine and coarse labels are given."""
    files = {
        "train.bin": cifar_records(train[0], train[2], train[1]),
        "test.bin": cifar_records(test[0], test[2], test[1]),
    }
    if names:
        files["fine_label_names.txt"] = "\n".join([*names, ""]).encode()
    return {f"cifar-100-binary/{name}": raw for name, raw in files.items()}


def python2_pickle(table: Mapping[str, Any]) -> bytes:
    """A dictionary as Python 2 pickled those of CIFAR, protocol 2: texts are bytes, arrays are of numpy."""
    return b"\x80\x02" + _python2_item(dict(table)) + b"."


def _python2_item(item: Any) -> bytes:
    if isinstance(item, dict):
        return (
            b"}(" + b"".join(_python2_item(key) + _python2_item(value) for key, value in item.items()) + b"u"
        )
    if isinstance(item, list):
        return b"](" + b"".join(map(_python2_item, item)) + b"e"
    if isinstance(item, str):
        raw = item.encode("latin-1")
        return (b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))) + raw
    if isinstance(item, np.ndarray):
        shape = b"".join(map(_python2_item, item.shape))
        kind = (
            b"cnumpy\ndtype\nq\x01"
            + _python2_item("u1")
            + b"K\x00K\x01\x87R(K\x03"
            + _python2_item("|")
            + b"NNN"
        )
        kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        start = (
            b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85"
            + _python2_item("b")
            + b"\x87R"
        )
        return (
            start
            + b"(K\x01("
            + shape
            + b"t"
            + kind
            + b"\x89"
            + _python2_item(item.tobytes().decode("latin-1"))
            + b"tb"
        )
    return b"J" + struct.pack("<i", int(item))


def cifar10_python(train: tuple[Images, Digits], test: tuple[Images, Digits]) -> dict[str, bytes]:
    """The members of the archive of CIFAR-10 for Python."""
    parts = list(zip(np.array_split(train[0], 5), np.array_split(train[1], 5), strict=True))
    batches = {f"data_batch_{number}": part for number, part in enumerate(parts, 1)} | {"test_batch": test}
    files = {
        name: python2_pickle(
            {
                "batch_label": name,
                "labels": [int(label) for label in y],
                "data": x.reshape(len(x), -1),
                "filenames": [f"{number}.png" for number in range(len(x))],
            }
        )
        for name, (x, y) in batches.items()
    }
    files["batches.meta"] = python2_pickle(
        {"num_cases_per_batch": 10000, "label_names": list(CIFAR10), "num_vis": 3072}
    )
    return {f"cifar-10-batches-py/{name}": raw for name, raw in files.items()}


def cifar100_python(
    train: tuple[Images, Digits, Digits], test: tuple[Images, Digits, Digits], names: Sequence[str] = ()
) -> dict[str, bytes]:
    """The members of the archive of CIFAR-100 for Python; images, fine and coarse labels are given."""
    files = {
        name: python2_pickle(
            {
                "fine_labels": [int(label) for label in fine],
                "coarse_labels": [int(label) for label in coarse],
                "data": x.reshape(len(x), -1),
            }
        )
        for name, (x, fine, coarse) in (("train", train), ("test", test))
    }
    if names:
        files["meta"] = python2_pickle({"fine_label_names": list(names)})
    return {f"cifar-100-python/{name}": raw for name, raw in files.items()}


def write_svhn(folder: Path, train: tuple[Images, Digits], test: tuple[Images, Digits]) -> None:
    """Write both .mat files of SVHN; digit 0 is written as 10."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in (("train", train), ("test", test)):
        digits = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
        savemat(
            folder / f"{name}_32x32.mat", {"X": x.transpose(2, 3, 1, 0), "y": digits}, do_compression=True
        )
