"""CIFAR-10 and CIFAR-100 from the archives of their authors, in the binary or the Python version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import PathField, frozen_config
from allrounder.config.toml import read_limited
from allrounder.data.base import Data, DataSpec, prefix_errors
from allrounder.data.datasets.class_names import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from allrounder.data.files.archives import read_members
from allrounder.data.files.cache import dataset_folder, missing_error
from allrounder.data.files.safe_pickle import read_plain_dict
from allrounder.errors import DataError

SHAPE = (3, 32, 32)
NUM_PIXELS = 3 * 32 * 32
MAX_FILE_BYTES = 2**28
"""Bytes of one file; the largest one, the training images of CIFAR-100, has 155 MB."""
ImagesAndLabels = tuple[NDArray[np.uint8], NDArray[np.int64]]
Names = tuple[str, ...]
Splits = tuple[Names, Names]
"""The files of the training and of the test images, without ".bin"."""


@final
@dataclass(frozen=True)
class ArchiveFormat:
    """The files of one version of a dataset: binary (.bin), or pickled for Python."""

    archive: str
    folder: str
    """The folder in the archive."""
    names_file: str
    """The file with the names of the classes."""
    label_key: str | None = None
    """The prefix of the keys of labels and class names in the Python version; None for the binary version."""
    label_column: int = 0
    """The position of the label among the bytes before the pixels, in the binary version."""
    num_label_columns: int = 1
    """The number of bytes before the pixels, in the binary version."""


@final
@frozen_config
class Cifar10(DataSpec):
    """CIFAR-10: 50,000 training and 10,000 test photographs of 10 classes, 32x32, from its archive.

    Reads the binary or the Python archive, or the folder that it unpacks to. Pickles are not executed.
    """

    folder: PathField = None
    """The folder with the archive or the unpacked files; by default in the cache."""

    @override
    def load(self) -> Data:
        binary = ArchiveFormat("cifar-10-binary.tar.gz", "cifar-10-batches-bin", "batches.meta.txt")
        python = ArchiveFormat("cifar-10-python.tar.gz", "cifar-10-batches-py", "batches.meta", "label")
        batches = tuple(f"data_batch_{number}" for number in range(1, 6))
        return _load("cifar10", self.folder, (binary, python), (batches, ("test_batch",)), CIFAR10)


@final
@frozen_config
class Cifar100(DataSpec):
    """CIFAR-100: 50,000 training and 10,000 test photographs of 100 classes, 32x32, from its archive.

    Reads the binary or the Python archive, or the folder that it unpacks to. Pickles are not executed.
    """

    folder: PathField = None
    """The folder with the archive or the unpacked files; by default in the cache."""
    labels: Literal["fine", "coarse"] = "fine"
    """The 100 fine classes, or the 20 coarse classes that group them."""

    @override
    def load(self) -> Data:
        kind, column = f"{self.labels}_label", 1 if self.labels == "fine" else 0
        binary = ArchiveFormat(
            "cifar-100-binary.tar.gz", "cifar-100-binary", f"{kind}_names.txt", None, column, 2
        )
        python = ArchiveFormat("cifar-100-python.tar.gz", "cifar-100-python", "meta", kind)
        names = CIFAR100_FINE if self.labels == "fine" else CIFAR100_COARSE
        return _load("cifar100", self.folder, (binary, python), (("train",), ("test",)), names)


def _load(
    kind: str, folder: str | None, formats: Sequence[ArchiveFormat], splits: Splits, names: Names
) -> Data:
    """Read the first of the versions that the folder has; `names` are for files without class names."""
    root = dataset_folder(kind, folder)
    for version in formats:
        suffix = ".bin" if version.label_key is None else ""
        train, test = ([f"{name}{suffix}" for name in split] for split in splits)
        location = _read_files(kind, root, version, [*train, *test])
        if location is None:
            continue
        path, files = location
        arrays = [array for split in (train, test) for array in _parse_all(path, files, split, version)]
        with prefix_errors(f"{path}:"):
            classes = _class_names(files, version, names)
            return Data.from_arrays(kind, *arrays, classes=classes)
    raise missing_error(kind, root, [formats[0].archive])


def _read_files(
    kind: str, folder: Path, version: ArchiveFormat, needed: list[str]
) -> tuple[Path, dict[str, bytes]] | None:
    """Read the files of a version: (archive or folder, contents by name); None if the folder has none."""
    wanted = (*needed, version.names_file)
    path = folder / version.archive
    unpacked = [place for place in (folder / version.folder, folder) if (place / needed[0]).is_file()]
    if path.is_file():
        files = read_members(path, wanted, max_file_bytes=MAX_FILE_BYTES)
    elif unpacked:
        path = unpacked[0]
        files = {name: _read_file(path / name) for name in wanted if (path / name).is_file()}
    else:
        return None
    missing = [name for name in needed if name not in files]
    if missing:
        raise missing_error(kind, path, missing)
    return path, files


def _read_file(path: Path) -> bytes:
    with prefix_errors(f"{path}:"):
        return read_limited(path, MAX_FILE_BYTES)


def _parse_all(
    path: Path, files: dict[str, bytes], names: list[str], version: ArchiveFormat
) -> ImagesAndLabels:
    """Parse and concatenate the files of a split, and drop their contents."""
    parts: list[ImagesAndLabels] = []
    for name in names:
        with prefix_errors(f"{path}: {name}"):
            raw, key = files.pop(name), version.label_key
            parts.append(_parse_binary(raw, version) if key is None else _parse_pickle(raw, key))
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return images.reshape(-1, *SHAPE), labels


def _parse_binary(raw: bytes, version: ArchiveFormat) -> ImagesAndLabels:
    record = version.num_label_columns + NUM_PIXELS
    count, rest = divmod(len(raw), record)
    if rest or not count:
        raise DataError(f"is cut short: got {len(raw)} bytes, expected {record} for each image; get it again")
    rows = np.frombuffer(raw, np.uint8).reshape(count, record)
    labels = rows[:, version.label_column].astype(np.int64)
    return rows[:, version.num_label_columns :], labels


def _parse_pickle(raw: bytes, label_key: str) -> ImagesAndLabels:
    table = read_plain_dict(raw)
    # The key is "labels" in CIFAR-10, "fine_labels" or "coarse_labels" in CIFAR-100.
    x, y = table.get("data"), table.get(f"{label_key}s")
    images = cast(NDArray[np.uint8], x if isinstance(x, np.ndarray) else np.empty(0))
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != NUM_PIXELS:
        raise DataError(f"has no uint8 array data of shape (n, {NUM_PIXELS}); get it again")
    if not isinstance(y, list) or not all(type(label) is int for label in cast(list[Any], y)):
        raise DataError(f"has no list of numbers {label_key}s; get it again")
    labels = cast(list[int], y)
    if len(labels) != len(images) or not labels or not 0 <= min(labels) <= max(labels) < 256:
        raise DataError(f"has {len(labels)} labels for {len(images)} images, expected one each; get it again")
    return images, np.array(labels, np.int64)


def _class_names(files: Mapping[str, bytes], version: ArchiveFormat, default: Names) -> Names:
    """The class names in the files, or the default ones."""
    raw = files.get(version.names_file)
    if raw is None:
        return default
    with prefix_errors(version.names_file):
        if version.label_key is None:
            names = raw.decode("ascii", "replace").split()
        else:
            entry = read_plain_dict(raw).get(f"{version.label_key}_names")
            items = cast(list[Any], entry) if isinstance(entry, list) else []
            names = [item.decode("ascii", "replace") if isinstance(item, bytes) else item for item in items]
            if not names or not all(isinstance(name, str) for name in names):
                raise DataError(f"has no list of texts {version.label_key}_names; get it again")
        if len(names) != len(default):
            raise DataError(f"names {len(names)} classes, expected {len(default)}; get it again")
        return tuple(names)
