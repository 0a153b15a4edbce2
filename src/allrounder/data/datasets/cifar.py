"""CIFAR-10 and CIFAR-100, in the archives of their authors: binary ones, or those for Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.fields import Place, value
from allrounder.data.base import Data, DataSpec, named
from allrounder.data.datasets.class_names import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from allrounder.data.files.archives import read_members
from allrounder.data.files.cache import absent, folder_of
from allrounder.data.files.safe_pickle import read_plain

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@final
@value
class Packing:
    """One of the two ways in which a set is packed."""

    archive: str
    inside: str
    """The folder in the archive."""
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    """The file with the names of the classes."""
    key: str | None = None
    """What the labels and the names are called, in files for Python."""
    column: int = 0
    """The byte before the pixels that is the label, in binary files."""
    columns: int = 1


@final
@value
class Cifar10(DataSpec):
    """CIFAR-10: 50,000 training and 10,000 test photographs of 10 classes, 32x32, from its archive.

    The binary archive or the one for Python, or the folder that either unpacks to; nothing of it is executed.
    """

    folder: Place = None
    """Where the archive, or what it unpacks to, is; by default in the cache."""

    def load(self) -> Data:
        """Read the archive in place and check it."""
        batches = tuple(f"data_batch_{number}" for number in range(1, 6))
        binary = Packing(
            archive="cifar-10-binary.tar.gz",
            inside="cifar-10-batches-bin",
            train=tuple(f"{name}.bin" for name in batches),
            test=("test_batch.bin",),
            names="batches.meta.txt",
        )
        python = Packing(
            archive="cifar-10-python.tar.gz",
            inside="cifar-10-batches-py",
            train=batches,
            test=("test_batch",),
            names="batches.meta",
            key="label",
        )
        return _load("cifar10", self.folder, (binary, python), CIFAR10)


@final
@value
class Cifar100(DataSpec):
    """CIFAR-100: 50,000 training and 10,000 test photographs of 100 classes, 32x32, from its archive.

    The binary archive or the one for Python, or the folder that either unpacks to; nothing of it is executed.
    """

    folder: Place = None
    """Where the archive, or what it unpacks to, is; by default in the cache."""
    labels: Literal["fine", "coarse"] = "fine"
    """The 100 classes, or the 20 that they are grouped into."""

    def load(self) -> Data:
        """Read the archive in place and check it."""
        binary = Packing(
            archive="cifar-100-binary.tar.gz",
            inside="cifar-100-binary",
            train=("train.bin",),
            test=("test.bin",),
            names=f"{self.labels}_label_names.txt",
            column=1 if self.labels == "fine" else 0,
            columns=2,
        )
        python = Packing(
            archive="cifar-100-python.tar.gz",
            inside="cifar-100-python",
            train=("train",),
            test=("test",),
            names="meta",
            key=f"{self.labels}_label",
        )
        known = CIFAR100_FINE if self.labels == "fine" else CIFAR100_COARSE
        return _load("cifar100", self.folder, (binary, python), known)


Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _load(kind: str, folder: str | None, packings: tuple[Packing, ...], known: tuple[str, ...]) -> Data:
    where = folder_of(kind, folder)
    for packing in packings:
        if (found := _files(kind, where, packing)) is not None:
            place, files = found
            (x_train, y_train), (x_test, y_test) = (
                _join([_read(place, name, files.pop(name), packing) for name in part])
                for part in (packing.train, packing.test)
            )
            with named(f"{place}:"):
                classes = _class_names(files, packing, known)
                return Data.of(kind, x_train, y_train, x_test, y_test, classes)
    raise absent(kind, where, [packings[0].archive])


def _files(kind: str, folder: Path, packing: Packing) -> tuple[Path, dict[str, bytes]] | None:
    """The contents of the files of a set, from its archive or unpacked, and where they were; or none."""
    needed = (*packing.train, *packing.test)
    archive = folder / packing.archive
    places = [place for place in (folder / packing.inside, folder) if (place / needed[0]).is_file()]
    if archive.is_file():
        place, files = archive, read_members(archive, (*needed, packing.names))
    elif places:
        place = places[0]
        there = [name for name in (*needed, packing.names) if (place / name).is_file()]
        files = {name: (place / name).read_bytes() for name in there}
    else:
        return None
    missing = [name for name in needed if name not in files]
    if missing:
        raise absent(kind, place, missing)
    return place, files


def _read(place: Path, name: str, raw: bytes, packing: Packing) -> Part:
    """The images and labels of one file."""
    with named(f"{place}: {name}"):
        return _read_binary(raw, packing) if packing.key is None else _read_python(raw, packing.key)


def _read_binary(raw: bytes, packing: Packing) -> Part:
    record = packing.columns + PIXELS
    count, rest = divmod(len(raw), record)
    if rest or not count:
        raise ValueError(
            f"is cut short: got {len(raw)} bytes, expected {record} for each image; get it again"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(count, record)
    return rows[:, packing.columns :], rows[:, packing.column].astype(np.int64)


def _read_python(raw: bytes, key: str) -> Part:
    table = read_plain(raw)
    # CIFAR-10 calls them "labels", CIFAR-100 "fine_labels" and "coarse_labels".
    x, y = table.get("data"), table.get(f"{key}s")
    images = cast(NDArray[np.uint8], x if isinstance(x, np.ndarray) else np.empty(0))
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != PIXELS:
        raise ValueError(f"has no data of bytes (n, {PIXELS}); get it again")
    if not isinstance(y, list) or not all(type(label) is int for label in cast(list[Any], y)):
        raise ValueError(f"has no list of numbers {key}s; get it again")
    labels = cast(list[int], y)
    if len(labels) != len(images) or not labels or not 0 <= min(labels) <= max(labels) < 256:
        raise ValueError(
            f"has {len(labels)} labels for {len(images)} images, expected one each; get it again"
        )
    return images, np.array(labels, np.int64)


def _join(parts: list[Part]) -> Part:
    x = np.concatenate([images for images, _ in parts])
    return x.reshape(-1, *SHAPE), np.concatenate([labels for _, labels in parts])


def _class_names(files: Mapping[str, bytes], packing: Packing, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that come with the set, or those we know."""
    raw = files.get(packing.names)
    if raw is None:
        return known
    with named(packing.names):
        found = raw.decode("ascii", "replace").split() if packing.key is None else _listed(raw, packing.key)
        if len(found) != len(known):
            raise ValueError(f"names {len(found)} classes, expected {len(known)}; get it again")
        return tuple(found)


def _listed(raw: bytes, key: str) -> list[str]:
    found = read_plain(raw).get(f"{key}_names")
    names = cast(list[Any], found) if isinstance(found, list) else []
    texts = [name.decode("ascii", "replace") if isinstance(name, bytes) else name for name in names]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has no list of texts {key}_names; get it again")
    return texts
