"""Integrity checks of datasets on disk: all files, the right number of images, and every image decodable."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import torch

from allrounder.data.base import Data, Split
from allrounder.data.files.catalog import PublishedDataset
from allrounder.data.files.npy import open_npy
from allrounder.data.streaming.split import LazySplit
from allrounder.errors import DataError
from allrounder.types import Labels

BATCH_SIZE = 64
MAX_REPORTED = 20
"""Damaged images that are reported at most."""
LABELS_FILE = "labels.npy"


def has_files(folder: Path) -> bool:
    """Whether a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def missing_members(entry: PublishedDataset, folder: Path) -> list[str]:
    """The files and folders that an unpacked dataset should have but does not."""
    return [name for name in entry.members if not (folder / name).exists()]


def array_problems(entry: PublishedDataset, folder: Path) -> list[str]:
    """Check the files of an unpacked dataset of arrays; return the problems."""
    missing = missing_members(entry, folder)
    problems = [f"{folder}: has no {', '.join(missing)}; get the set again"] if missing else []
    for path in (folder / name for name in entry.members if name not in missing):
        shape = entry.array_shape[:1] if path.name == LABELS_FILE else entry.array_shape
        try:
            array = open_npy(path)
        except (ValueError, OSError) as error:
            problems.append(f"{path}: cut short or damaged ({error}); get the set again")
            continue
        if array.shape != shape or array.dtype.kind not in "iu":
            got = f"{array.dtype} of shape {array.shape}"
            problems.append(f"{path}: holds {got}, expected whole numbers of shape {shape}; get it again")
    return problems


def count_problems(entry: PublishedDataset, data: Data) -> list[str]:
    """Compare the numbers of images with the published ones; return the problems."""
    if entry.num_images is None:
        return []
    train = None if data.train is data.test else data.train
    splits = zip(("training", "test"), (train, data.test), entry.num_images, strict=True)
    return [
        f"{data.name}: has {len(split)} {name} images, the published set {count}; get the set again"
        for name, split, count in splits
        if split is not None and len(split) != count
    ]


def find_damaged_images(split: Split, on_progress: Callable[[int], object]) -> list[str]:
    """Decode every image of a split of files; return the problems, and call back with the number decoded."""
    problems: list[str] = []
    if not isinstance(split, LazySplit):
        return problems
    batches = torch.split(torch.arange(len(split)), BATCH_SIZE)
    for rows, later in zip_longest(batches, batches[1:]):
        if later is not None:
            split.prefetch(later)
        problems += _decode_problems(split, rows)
        on_progress(int(rows[-1]) + 1)
        if len(problems) >= MAX_REPORTED:
            return [*problems[:MAX_REPORTED], f"{split.files.root}: there may be more such images"]
    return problems


def _decode_problems(split: LazySplit, rows: Labels) -> list[str]:
    """Decode images, one by one if they cannot be decoded together; return the problems."""
    try:
        split.fetch(rows)
    except DataError as error:
        if len(rows) == 1:
            return [str(error)]
        return [problem for row in torch.split(rows, 1) for problem in _decode_problems(split, row)]
    return []
