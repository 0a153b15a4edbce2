"""Whether datasets on disk are whole: all their images, each of which can be decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from allrounder.data.base import Data, Split
from allrounder.data.files.catalog import Published
from allrounder.data.streaming.split import Streamed
from allrounder.errors import DataError

BATCH = 64
MOST = 20
"""So many damaged images are told."""
LABELS = "labels.npy"


def is_there(folder: Path) -> bool:
    """Whether a folder has anything in it."""
    return folder.is_dir() and any(folder.iterdir())


def lacking(entry: Published, folder: Path) -> list[str]:
    """The files and folders that an unpacked set should have and has not."""
    return [name for name in entry.members if not (folder / name).exists()]


def wrong_arrays(entry: Published, folder: Path) -> list[str]:
    """What is wrong with the files of an unpacked set that holds arrays."""
    missing = lacking(entry, folder)
    problems = [f"{folder}: has no {', '.join(missing)}; get the set again"] if missing else []
    for name in entry.members:
        if name not in missing:
            problems += _wrong_array(folder / name, len(entry.shape) if name != LABELS else 1, entry)
    return problems


def _wrong_array(path: Path, sides: int, entry: Published) -> list[str]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        return [f"{path}: cut short or damaged ({error}); get the set again"]
    if array.shape != entry.shape[:sides] or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}"
        return [f"{path}: holds {got}, expected whole numbers of shape {entry.shape[:sides]}; get it again"]
    return []


def wrong_counts(entry: Published, data: Data) -> list[str]:
    """What is said of a set that has another number of images than was published."""
    if entry.images is None:
        return []
    splits = zip(("training", "test"), _splits(data), entry.images, strict=True)
    return [
        f"{data.name}: has {len(split)} {name} images, the published set {count}; get the set again"
        for name, split, count in splits
        if split is not None and len(split) != count
    ]


def _splits(data: Data) -> tuple[Split | None, Split]:
    return None if data.train is data.test else data.train, data.test


def damaged_images(split: Split, step: Callable[[int], object]) -> list[str]:
    """Decode every image that is still in its file; what is wrong with some of them."""
    problems: list[str] = []
    if not isinstance(split, Streamed):
        return problems
    every = torch.arange(len(split))
    for start in range(0, len(split), BATCH):
        rows, later = (every[at : at + BATCH] for at in (start, start + BATCH))
        if len(later):
            split.expect(later)
        try:
            split.fetch(rows)
        except DataError:
            problems += [
                said
                for row in range(start, start + len(rows))
                if (said := _wrong_image(split, row)) is not None
            ]
        step(start + len(rows))
        if len(problems) >= MOST:
            return [*problems[:MOST], f"{split.listing.root}: there may be more such images"]
    return problems


def _wrong_image(split: Streamed, row: int) -> str | None:
    try:
        split.fetch(torch.tensor([row]))
    except DataError as error:
        return str(error)
    return None
