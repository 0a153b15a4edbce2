"""Which image files a folder has, and of which class they are: a sorted list that takes little memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import numpy as np
import torch
from torch import Tensor

from allrounder.config.fields import nearest

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""How the names of image files end, in capitals or not."""
LITTER = ("thumbs.db", "desktop.ini")
"""Files that systems leave behind; together with all whose names begin with a dot, they are no images."""


@final
@dataclass(frozen=True, eq=False)
class Listing:
    """Files below a folder with their labels; names are kept as bytes, one after the other."""

    root: str
    names: Tensor
    ends: Tensor
    labels: Tensor

    @classmethod
    def of(cls, root: Path, files: Iterable[tuple[str, int]]) -> Listing:
        """A list of (name below the root, label)."""
        names, ends, labels = bytearray(), np.empty(1024, np.int64), np.empty(1024, np.int64)
        count = 0
        for name, label in files:
            if count == len(ends):
                ends, labels = (np.concatenate([array, np.empty_like(array)]) for array in (ends, labels))
            names += os.fsencode(name)
            ends[count], labels[count] = len(names), label
            count += 1
        letters = torch.from_numpy(np.frombuffer(names, np.uint8).copy())
        kept = (torch.from_numpy(array[:count].copy()) for array in (ends, labels))
        return cls(str(root), letters, *kept)

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, row: int) -> str:
        """The file at a position, below the root."""
        if not 0 <= row < len(self):
            raise IndexError(f"got position {row}, expected 0 to {len(self) - 1}")
        start = int(self.ends[row - 1]) if row else 0
        return os.fsdecode(self.names[start : int(self.ends[row])].numpy().tobytes())

    def path(self, row: int) -> str:
        """The file at a position."""
        return os.path.join(self.root, self.name(row))

    def chosen(self, rows: Sequence[int]) -> Listing:
        """Some of the files, in the given order."""
        labels = cast(list[int], self.labels[list(rows)].tolist())
        return Listing.of(Path(self.root), zip(map(self.name, rows), labels, strict=True))


def class_folders(folder: Path) -> list[str]:
    """The names of the sub-folders, sorted: one for each class; images beside them are refused."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: no such folder (looked from {Path.cwd()}); expected one folder for each class in it"
        )
    with os.scandir(folder) as found:
        entries = [entry for entry in found if not _litter(entry.name)]
    loose = sorted(entry.name for entry in entries if _is_image(entry.name) and entry.is_file())
    if loose:
        raise ValueError(
            f"{folder}: has images beside the folders of its classes, such as {loose[0]}, expected folders "
            "alone; move every image into the folder of its class"
        )
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        raise ValueError(f"{folder}: has no folders, expected one for each class, with its images in it")
    return names


def scan(root: Path, classes: Sequence[str], inner: str = "") -> Listing:
    """The images of all classes, in the order of the classes and then by name.

    `inner` is a folder inside that of every class, in which the images are.
    """

    def files() -> Iterable[tuple[str, int]]:
        for label, name in enumerate(classes):
            folder = os.path.join(name, inner) if inner else name
            for file in images_in(root / folder):
                yield f"{folder}/{file}", label

    return Listing.of(root, files())


def images_in(folder: Path) -> list[str]:
    """The names of the images of one folder, sorted; there must be some, and nothing else."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder, expected images in it")
    images: list[str] = []
    with os.scandir(folder) as found:
        for entry in found:
            name = entry.name
            if _litter(name):
                continue
            if entry.is_dir():
                raise ValueError(
                    f"{entry.path}: is a folder inside that of a class, expected images alone; "
                    "move its images up, and remove it"
                )
            if entry.is_symlink() and not os.path.exists(entry.path):
                raise ValueError(
                    f"{entry.path}: is a link to {os.readlink(entry.path)}, which is not there; "
                    "put that back, or remove the link"
                )
            if not _is_image(name) or not entry.is_file():
                raise ValueError(
                    f"{entry.path}: is no image by its name, expected one of {' '.join(SUFFIXES)}; "
                    "rename it, or move it elsewhere"
                )
            images.append(name)
    if not images:
        raise ValueError(f"{folder}: has no images, expected some; add them, or remove the class everywhere")
    return sorted(images)


def check_same(train: Path, test: Path, ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Both splits must have the same classes."""
    for name in sorted(set(ours) ^ set(theirs)):
        has, lacks, known = (train, test, theirs) if name in ours else (test, train, ours)
        raise ValueError(
            f"{lacks}: has no class {name}, but {has} has{nearest(name, known)}; "
            "expected the same folders in both"
        )


def listed(file: Path, test: Listing, split: str) -> Listing:
    """Those of the test images that a file lists, in its order.

    One path a line, relative to the folder of the test images, or beginning with the name of that folder;
    empty lines are skipped, and what follows a # at the beginning of a line or after a space. Lists of
    other systems may have backslashes.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file (looked from {Path.cwd()}); set subset to a list file")
    known: Mapping[str, int] = {test.name(row): row for row in range(len(test))}
    rows: dict[int, int] = {}
    for number, raw in lines_of(file):
        text = re.sub(r"(^|\s)#.*", "", raw).strip()
        if not text:
            continue
        row = None
        for name in (text, text.replace("\\", "/")):
            name = name.removeprefix("./")
            row = known.get(name, known.get(name.removeprefix(f"{split}/"))) if row is None else row
        if row is None:
            raise ValueError(
                f"{file}: line {number}: got {text}, no such image in {test.root}; expected a path "
                f"below it, such as {test.name(0)}"
            )
        if row in rows:
            raise ValueError(
                f"{file}: line {number}: got {text}, which is in line {rows[row]} too; remove one of them"
            )
        rows[row] = number
    if not rows:
        raise ValueError(f"{file}: lists no image, expected one path a line")
    return test.chosen(list(rows))


def lines_of(file: Path) -> Iterable[tuple[int, str]]:
    """The lines of a text file that are not empty, with their numbers from 1."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is no text in UTF-8 ({error}); save it as such") from None
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in LITTER


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
