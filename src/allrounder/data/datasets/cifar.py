"""CIFAR-10 and CIFAR-100 from the archives of their authors, in the binary or the Python version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.fields import PathField, frozen_config
from allrounder.data.base import Data, DataSpec, prefix_errors
from allrounder.data.datasets.class_names import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from allrounder.data.files.archives import read_members
from allrounder.data.files.cache import dataset_folder, missing_error
from allrounder.data.files.safe_pickle import read_plain_dict

SHAPE = (3, 32, 32)
NUM_PIXELS = 3 * 32 * 32
ImagesAndLabels = tuple[NDArray[np.uint8], NDArray[np.int64]]


@final
@frozen_config
class ArchiveFormat:
    """The files of one version of a dataset: binary, or pickled for Python."""

    archive: str
    folder: str
    """The folder in the archive."""
    train: tuple[str, ...]
    test: tuple[str, ...]
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

    def load(self) -> Data:
        """Read the archive in place and check it."""
        batches = tuple(f"data_batch_{number}" for number in range(1, 6))
        binary = ArchiveFormat(
            archive="cifar-10-binary.tar.gz",
            folder="cifar-10-batches-bin",
            train=tuple(f"{name}.bin" for name in batches),
            test=("test_batch.bin",),
            names_file="batches.meta.txt",
        )
        python = ArchiveFormat(
            archive="cifar-10-python.tar.gz",
            folder="cifar-10-batches-py",
            train=batches,
            test=("test_batch",),
            names_file="batches.meta",
            label_key="label",
        )
        return _load("cifar10", self.folder, (binary, python), CIFAR10)


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

    def load(self) -> Data:
        """Read the archive in place and check it."""
        binary = ArchiveFormat(
            archive="cifar-100-binary.tar.gz",
            folder="cifar-100-binary",
            train=("train.bin",),
            test=("test.bin",),
            names_file=f"{self.labels}_label_names.txt",
            label_column=1 if self.labels == "fine" else 0,
            num_label_columns=2,
        )
        python = ArchiveFormat(
            archive="cifar-100-python.tar.gz",
            folder="cifar-100-python",
            train=("train",),
            test=("test",),
            names_file="meta",
            label_key=f"{self.labels}_label",
        )
        class_names = CIFAR100_FINE if self.labels == "fine" else CIFAR100_COARSE
        return _load("cifar100", self.folder, (binary, python), class_names)


def _load(
    kind: str, folder: str | None, formats: tuple[ArchiveFormat, ...], default_names: tuple[str, ...]
) -> Data:
    """Read the first of the versions that the folder has."""
    root = dataset_folder(kind, folder)
    for archive_format in formats:
        location = _read_files(kind, root, archive_format)
        if location is None:
            continue
        path, files = location
        (x_train, y_train), (x_test, y_test) = (
            _concat([_parse(path, name, files.pop(name), archive_format) for name in names])
            for names in (archive_format.train, archive_format.test)
        )
        with prefix_errors(f"{path}:"):
            classes = _class_names(files, archive_format, default_names)
            return Data.from_arrays(kind, x_train, y_train, x_test, y_test, classes)
    raise missing_error(kind, root, [formats[0].archive])


def _read_files(
    kind: str, folder: Path, archive_format: ArchiveFormat
) -> tuple[Path, dict[str, bytes]] | None:
    """Read the files of a version from its archive, or unpacked: (where they are, contents by name).

    None if the folder does not have this version.
    """
    needed = (*archive_format.train, *archive_format.test)
    wanted = (*needed, archive_format.names_file)
    archive = folder / archive_format.archive
    unpacked = [path for path in (folder / archive_format.folder, folder) if (path / needed[0]).is_file()]
    if archive.is_file():
        path = archive
        files = read_members(archive, wanted)
    elif unpacked:
        path = unpacked[0]
        files = {name: (path / name).read_bytes() for name in wanted if (path / name).is_file()}
    else:
        return None
    missing = [name for name in needed if name not in files]
    if missing:
        raise missing_error(kind, path, missing)
    return path, files


def _parse(path: Path, name: str, raw: bytes, archive_format: ArchiveFormat) -> ImagesAndLabels:
    with prefix_errors(f"{path}: {name}"):
        if archive_format.label_key is None:
            return _parse_binary(raw, archive_format)
        return _parse_pickle(raw, archive_format.label_key)


def _parse_binary(raw: bytes, archive_format: ArchiveFormat) -> ImagesAndLabels:
    record = archive_format.num_label_columns + NUM_PIXELS
    count, rest = divmod(len(raw), record)
    if rest or not count:
        raise ValueError(
            f"is cut short: got {len(raw)} bytes, expected {record} for each image; get it again"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(count, record)
    labels = rows[:, archive_format.label_column].astype(np.int64)
    return rows[:, archive_format.num_label_columns :], labels


def _parse_pickle(raw: bytes, label_key: str) -> ImagesAndLabels:
    table = read_plain_dict(raw)
    # The key is "labels" in CIFAR-10, "fine_labels" or "coarse_labels" in CIFAR-100.
    x, y = table.get("data"), table.get(f"{label_key}s")
    images = cast(NDArray[np.uint8], x if isinstance(x, np.ndarray) else np.empty(0))
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != NUM_PIXELS:
        raise ValueError(f"has no uint8 array data of shape (n, {NUM_PIXELS}); get it again")
    if not isinstance(y, list) or not all(type(label) is int for label in cast(list[Any], y)):
        raise ValueError(f"has no list of numbers {label_key}s; get it again")
    labels = cast(list[int], y)
    if len(labels) != len(images) or not labels or not 0 <= min(labels) <= max(labels) < 256:
        raise ValueError(
            f"has {len(labels)} labels for {len(images)} images, expected one each; get it again"
        )
    return images, np.array(labels, np.int64)


def _concat(parts: list[ImagesAndLabels]) -> ImagesAndLabels:
    x = np.concatenate([images for images, _ in parts])
    return x.reshape(-1, *SHAPE), np.concatenate([labels for _, labels in parts])


def _class_names(
    files: Mapping[str, bytes], archive_format: ArchiveFormat, default: tuple[str, ...]
) -> tuple[str, ...]:
    """The class names in the files, or the default ones."""
    raw = files.get(archive_format.names_file)
    if raw is None:
        return default
    with prefix_errors(archive_format.names_file):
        if archive_format.label_key is None:
            names = raw.decode("ascii", "replace").split()
        else:
            names = _names_from_pickle(raw, archive_format.label_key)
        if len(names) != len(default):
            raise ValueError(f"names {len(names)} classes, expected {len(default)}; get it again")
        return tuple(names)


def _names_from_pickle(raw: bytes, label_key: str) -> list[str]:
    entry = read_plain_dict(raw).get(f"{label_key}_names")
    names = cast(list[Any], entry) if isinstance(entry, list) else []
    texts = [name.decode("ascii", "replace") if isinstance(name, bytes) else name for name in names]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has no list of texts {label_key}_names; get it again")
    return texts
