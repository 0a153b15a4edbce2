"""Integrity checks of datasets on disk: all files, the right number of images, and every image decodable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from allrounder.data.base import Data, Split
from allrounder.data.files.catalog import PublishedDataset
from allrounder.data.streaming.split import LazySplit
from allrounder.errors import DataError

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
    for name in entry.members:
        if name not in missing:
            shape = entry.array_shape[:1] if name == LABELS_FILE else entry.array_shape
            problems += _check_array(folder / name, shape)
    return problems


def _check_array(path: Path, shape: tuple[int, ...]) -> list[str]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        return [f"{path}: cut short or damaged ({error}); get the set again"]
    if array.shape != shape or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}"
        return [f"{path}: holds {got}, expected whole numbers of shape {shape}; get it again"]
    return []


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
    """Decode every image of a split of files; return the problems of at most MAX_REPORTED images.

    `on_progress` is called with the number of images decoded so far.
    """
    problems: list[str] = []
    if not isinstance(split, LazySplit):
        return problems
    positions = torch.arange(len(split))
    for start in range(0, len(split), BATCH_SIZE):
        rows, later = (positions[first : first + BATCH_SIZE] for first in (start, start + BATCH_SIZE))
        if len(later):
            split.prefetch(later)
        try:
            split.fetch(rows)
        except DataError:
            problems += [
                problem
                for row in range(start, start + len(rows))
                if (problem := _decode_problem(split, row)) is not None
            ]
        on_progress(start + len(rows))
        if len(problems) >= MAX_REPORTED:
            return [*problems[:MAX_REPORTED], f"{split.files.root}: there may be more such images"]
    return problems


def _decode_problem(split: LazySplit, row: int) -> str | None:
    try:
        split.fetch(torch.tensor([row]))
    except DataError as error:
        return str(error)
    return None
