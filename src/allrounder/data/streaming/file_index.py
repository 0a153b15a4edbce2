"""An index of image files and their classes, sorted and small in memory."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import numpy as np
import torch
from torch import Tensor

from allrounder.config.fields import did_you_mean
from allrounder.config.text import shorten
from allrounder.config.toml import read_limited
from allrounder.errors import DataError, MissingDataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of image files, in lower or upper case."""
IGNORED_FILES = ("thumbs.db", "desktop.ini")
"""Files that operating systems create; they are ignored, as are files whose names begin with a dot."""
MAX_LIST_BYTES = 2**28
"""Size of a text file with a line for each image."""


@final
@dataclass(frozen=True, eq=False)
class FileIndex:
    """Files below a folder with their labels; the names are stored in one byte tensor."""

    root: str
    names: Tensor
    ends: Tensor
    """The end of every name in `names`."""
    labels: Tensor

    @classmethod
    def from_files(cls, root: Path, files: Iterable[tuple[str, int]]) -> FileIndex:
        """Build an index from pairs (name relative to the root, label)."""
        names, ends, labels = bytearray(), array("q"), array("q")
        for name, label in files:
            names += os.fsencode(name)
            ends.append(len(names))
            labels.append(label)
        columns = np.array(names, np.uint8), np.array(ends, np.int64), np.array(labels, np.int64)
        return cls(str(root), *(torch.from_numpy(column) for column in columns))

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, row: int) -> str:
        """The file name at a position, relative to the root."""
        if not 0 <= row < len(self):
            raise IndexError(f"got position {row}, expected 0 to {len(self) - 1}")
        start = int(self.ends[row - 1]) if row else 0
        return os.fsdecode(self.names[start : int(self.ends[row])].numpy().tobytes())

    def path(self, row: int) -> str:
        """The path of the file at a position."""
        return os.path.join(self.root, self.name(row))

    def select(self, rows: Sequence[int]) -> FileIndex:
        """An index of the files at these positions, in the given order."""
        labels = cast(list[int], self.labels[list(rows)].tolist())
        return FileIndex.from_files(Path(self.root), zip(map(self.name, rows), labels, strict=True))


def list_class_folders(folder: Path) -> list[str]:
    """List the sub-folders, sorted, one for each class. Raises ValueError if there are images beside them."""
    if not folder.is_dir():
        raise MissingDataError(
            f"{folder}: no such folder (looked from {Path.cwd()}); expected one folder for each class in it"
        )
    entries = _scan(folder)
    images = sorted(entry.name for entry in entries if _is_image(entry.name) and entry.is_file())
    if images:
        raise DataError(
            f"{folder}: has images beside the folders of its classes, such as {images[0]}, expected only "
            "folders; move every image into the folder of its class"
        )
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        raise DataError(f"{folder}: has no folders, expected one for each class, with its images in it")
    return names


def scan_class_folders(root: Path, classes: Sequence[str], inner: str = "") -> FileIndex:
    """Index the images of all classes, or of a folder `inner` in each of them, sorted by class and name."""
    folders = [f"{name}/{inner}" if inner else name for name in classes]
    files = ((f"{path}/{file}", i) for i, path in enumerate(folders) for file in list_images(root / path))
    return FileIndex.from_files(root, files)


def list_images(folder: Path) -> list[str]:
    """List the images of one folder, sorted. Raises ValueError if there are none, or other files."""
    if not folder.is_dir():
        raise MissingDataError(f"{folder}: no such folder, expected images in it")
    entries = _scan(folder)
    for entry in entries:
        if entry.is_dir():
            raise DataError(
                f"{entry.path}: is a folder inside the folder of a class, expected only images; "
                "move its images up, and remove it"
            )
        if entry.is_symlink() and not os.path.exists(entry.path):
            raise DataError(
                f"{entry.path}: is a link to {os.readlink(entry.path)}, which is not there; "
                "put that back, or remove the link"
            )
        if not _is_image(entry.name) or not entry.is_file():
            raise DataError(
                f"{entry.path}: is no image by its name, expected one of {' '.join(IMAGE_SUFFIXES)}; "
                "rename it, or move it elsewhere"
            )
    if not entries:
        raise DataError(f"{folder}: has no images, expected some; add them, or remove the class everywhere")
    return sorted(entry.name for entry in entries)


def check_same_classes(
    train: Path, test: Path, train_classes: Sequence[str], test_classes: Sequence[str]
) -> None:
    """Raise ValueError unless both splits have the same classes."""
    for name in sorted(set(train_classes) ^ set(test_classes)):
        sides = (train, test, test_classes), (test, train, train_classes)
        has, lacks, other_classes = sides[0] if name in train_classes else sides[1]
        raise DataError(
            f"{lacks}: has no class {name}, but {has} has{did_you_mean(name, other_classes)}; "
            "expected the same folders in both"
        )


def select_listed(file: Path, test: FileIndex, split: str) -> FileIndex:
    """Select the test images that a text file lists, in its order.

    A line has one path, relative to the folder of test images or beginning with its name `split`; backslashes
    are accepted as separators. Empty lines are skipped, and comments from a # at the beginning of a line or
    after a space.
    """
    if not file.is_file():
        raise MissingDataError(f"{file}: no such file (looked from {Path.cwd()}); set subset to a list file")
    row_of = {test.name(row): row for row in range(len(test))}
    line_of: dict[int, int] = {}
    for number, raw in read_lines(file):
        text = re.sub(r"(^|\s)#.*", "", raw).strip()
        if not text:
            continue
        paths = [path.removeprefix("./") for path in (text, text.replace("\\", "/"))]
        names = [name for path in paths for name in (path, path.removeprefix(f"{split}/"))]
        row = next((row_of[name] for name in names if name in row_of), None)
        if row is None:
            raise DataError(
                f"{file}: line {number}: got {shorten(text)}, no such image in {test.root}; expected a path "
                f"below it, such as {test.name(0)}"
            )
        if row in line_of:
            raise DataError(
                f"{file}: line {number}: got {text}, which is in line {line_of[row]} too; remove one of them"
            )
        line_of[row] = number
    if not line_of:
        raise DataError(f"{file}: lists no image, expected one path per line")
    return test.select(list(line_of))


def read_lines(file: Path) -> Iterable[tuple[int, str]]:
    """Read the nonempty lines of a text file, with their numbers from 1."""
    try:
        # Some editors write a byte order mark.
        text = read_limited(file, MAX_LIST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is no text in UTF-8 ({error}); save it as such") from None
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """List the entries of a folder that are neither hidden nor created by an operating system."""
    with os.scandir(folder) as entries:
        return [e for e in entries if not (e.name.startswith(".") or e.name.lower() in IGNORED_FILES)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)
