"""Corrupted or perturbed sets to evaluate on: published, generated earlier, or generated on the fly.

Sets generated earlier and on the fly are equal byte by byte, so it does not matter which one is used.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch

from allrounder.data.base import Split
from allrounder.data.corruptions.base import SEVERITIES, Uint8Array
from allrounder.data.corruptions.generate import (
    GENERATED,
    GENERATOR_VERSION,
    LABELS_FILE,
    MARKER_FILE,
    SHIFT_TABLES,
    GeneratedSet,
    ShiftKind,
    fetch_uint8,
    read_marker,
    source_digest,
)
from allrounder.data.files.cache import cache_folder
from allrounder.data.files.npy import open_npy
from allrounder.errors import RunError
from allrounder.types import Labels

NUM_MATCHED_IMAGES = 16
"""Images compared to check that a published set is made from the images of the split."""
NUM_DIGEST_IMAGES = 64
"""Images of a published file that enter its digest."""
OFFICIAL = "official"


@final
class UnusableSetError(RunError):
    """A set is damaged or incomplete."""


@final
@dataclass(frozen=True, eq=False)
class StoredSet:
    """Corrupted or perturbed copies of the images of a split, read from a folder as they are fetched."""

    folder: Path
    num_images: int
    source: str
    description: str
    fallback_reason: str = ""
    """Why an official set that exists is not used, or empty."""

    def content_id(self, name: str) -> str:
        """Return an identifier of the images: how they were generated, or a digest of some published ones."""
        if self.source == GENERATED:
            return self.description
        return f"{OFFICIAL} {_sample_digest(_open_array(self.folder, name))}"

    def num_frames(self, name: str) -> int:
        """Return the number of frames in the file of a perturbation."""
        return int(_open_array(self.folder, name).shape[1])

    def fetch(self, name: str, severity: int | None, rows: Labels) -> Uint8Array:
        """Return the given rows: (n, 1, h, w, c) at a severity, or all frames, (n, frames, h, w, c)."""
        array, index = _open_array(self.folder, name), rows.numpy()
        return array[index] if severity is None else array[(severity - 1) * self.num_images + index][:, None]


ShiftedSet: TypeAlias = GeneratedSet | StoredSet


def find_set(
    split: Split, kind: ShiftKind, names: Sequence[str], folder: str | Path | None = None
) -> ShiftedSet:
    """Find the set of a split that has the given corruptions (kind "c") or perturbations (kind "p").

    Searches `folder`, or the cache by default, and two levels below it. A given folder must have the set;
    without one in the cache, the images are generated on the fly. Published sets are preferred to generated
    ones, with a warning if a published set in the cache is damaged or incomplete. Sets generated with another
    seed are not taken from the cache, so results do not depend on what was generated before.
    """
    root = cache_folder() if folder is None else Path(folder).expanduser()
    folders = [root, *(path for depth in ("*", "*/*") for path in sorted(root.glob(depth)) if path.is_dir())]
    candidates: list[ShiftedSet] = []
    problems: list[str] = []
    unusable: list[str] = []
    for path in folders:
        if any(_matches_kind(path, name, kind) for name in SHIFT_TABLES[kind]):
            try:
                candidates.append(_open_stored(path, kind, names, split))
            except RunError as error:
                problems.append(str(error))
                if isinstance(error, UnusableSetError) and not (path / MARKER_FILE).is_file():
                    unusable.append(str(error))
    if folder is None:
        on_the_fly = GeneratedSet(split, kind)
        candidates = [
            c for c in candidates if c.source == OFFICIAL or c.description == on_the_fly.description
        ]
        candidates.append(on_the_fly)
    if not candidates:
        layout = f"{next(iter(names))}.npy as in CIFAR-10-{kind.upper()}"
        expected = f"expected {layout} in it or up to two levels below; generate or download it"
        raise RunError("; ".join(problems) or f"{root}: no set found, {expected}")
    best = min(candidates, key=lambda candidate: candidate.source == GENERATED)
    if best.source == GENERATED and unusable:
        warnings.warn(f"{unusable[0]}; {GENERATED} images are used instead of official ones", stacklevel=2)
        return replace(best, fallback_reason=unusable[0])
    return best


def _open_stored(folder: Path, kind: ShiftKind, names: Sequence[str], split: Split) -> StoredSet:
    """Open a set on disk and check that it is made from the images of the split."""
    n = len(split)
    image_shape = fetch_uint8(split, torch.arange(1)).shape[1:]
    needs_labels = kind == "c" or (folder / LABELS_FILE).is_file()
    arrays, errors = _open_arrays(folder, [*names, "labels"] if needs_labels else names)
    labels = arrays.pop("labels", None)
    for name, array in arrays.items():
        frames = array.shape[1:2]
        expected = (len(SEVERITIES) * n, *image_shape) if kind == "c" else (n, *frames, *image_shape)
        if array.dtype != np.uint8 or array.shape != expected:
            raise RunError(
                f"{folder / name}.npy: got {array.dtype} of shape {array.shape}, expected uint8 of "
                f"{expected}; evaluate on the images that it was made from"
            )
    if labels is not None and not np.array_equal(labels, np.tile(split.labels.numpy(), len(labels) // n)):
        what = "differs from the labels of the data; give the set made from the data"
        raise RunError(f"{folder / LABELS_FILE}: {what}")
    marker = read_marker(folder)
    if marker is None and arrays:
        name, array = next(iter(arrays.items()))
        _check_same_images(folder / f"{name}.npy", array, kind, split)
    # Raised last: whether a set of other images is complete does not matter.
    if errors:
        raise errors[0]
    if marker is None:
        note = f"unmarked files, taken as official (known by {_set_digest(folder, kind)})"
        return StoredSet(folder, n, OFFICIAL, note)
    if marker.get("source") != source_digest(split) or marker.get("generation") != GENERATOR_VERSION:
        raise RunError(f"{folder}: generated from other images or by another version; generate it again")
    return StoredSet(folder, n, GENERATED, GeneratedSet(split, kind, marker["seed"]).description)


def _open_arrays(folder: Path, names: Iterable[str]) -> tuple[dict[str, Any], list[UnusableSetError]]:
    """Open the arrays of the given names; returns them and the errors of those that cannot be opened."""
    arrays: dict[str, Any] = {}
    errors: list[UnusableSetError] = []
    for name in names:
        try:
            arrays[name] = _open_array(folder, name)
        except UnusableSetError as error:
            errors.append(error)
    return arrays, errors


def _set_digest(folder: Path, kind: ShiftKind) -> str:
    """Return a digest of a set without a marker, from some images of each of its files."""
    arrays, _ = _open_arrays(folder, SHIFT_TABLES[kind])
    text = "".join(f"{name} {_sample_digest(array)} " for name, array in arrays.items())
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _sample_digest(array: Any) -> str:
    """Return a digest of some images of a file."""
    sample = array[:: max(len(array) // NUM_DIGEST_IMAGES, 1)]
    return hashlib.sha256(np.ascontiguousarray(sample).tobytes()).hexdigest()[:16]


def _check_same_images(file: Path, array: Any, kind: ShiftKind, split: Split) -> None:
    """Raise RunError unless most images of a sample are closer to their own changed copy than to others'.
    Sequences are compared by their middle frame, because geometric ones start far from the image."""
    rows = torch.arange(len(split))[:: max(len(split) // NUM_MATCHED_IMAGES, 1)][:NUM_MATCHED_IMAGES]
    index = rows.numpy()
    changed = (array[index] if kind == "c" else array[index, array.shape[1] // 2]).astype(np.int64)
    original = fetch_uint8(split, rows).astype(np.int64)
    distance = np.abs(original[:, None] - changed[None]).mean(axis=(2, 3, 4))
    matches = int((distance.argmin(1) == np.arange(len(rows))).sum())
    if 2 * matches < len(rows):
        raise RunError(
            f"{file}: {len(rows) - matches} of {len(rows)} images are not those of the data; "
            "give the set made from the data, in the same order"
        )


def _matches_kind(folder: Path, name: str, kind: ShiftKind) -> bool:
    """Whether a file of this name is of a kind; arrays of sequences have one dimension more."""
    try:
        return _open_array(folder, name).ndim == (4 if kind == "c" else 5)
    except UnusableSetError:
        return (folder / f"{name}.npy").is_file()  # opening it reports what is wrong


def _open_array(folder: Path, name: str) -> Any:
    """Open an array as a memory map."""
    file = folder / f"{name}.npy"
    if not file.is_file():
        raise UnusableSetError(
            f"{folder}: has no {file.name}; generate or download it, or give another folder"
        )
    try:
        return open_npy(file)
    except (OSError, ValueError) as error:
        raise UnusableSetError(f"{file}: cannot be read ({error}); download or generate it again") from None
