"""Sets of changed images to evaluate on: published ones, ones made before, or made as they are needed.

The last two are the same, byte by byte, so it does not matter which of them is used.
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
from allrounder.data.corruptions import CORRUPTIONS, corrupt
from allrounder.data.corruptions.base import SEVERITIES, Bytes
from allrounder.data.corruptions.generate import (
    GENERATION,
    LABELS,
    MARKER,
    NOTES,
    Kind,
    bytes_of,
    numbers_of,
    read_marker,
    source_digest,
)
from allrounder.data.corruptions.perturbations import PERTURBATIONS, perturb_sequence
from allrounder.data.files.cache import cache_folder
from allrounder.errors import RunError
from allrounder.types import Labels

SAMPLE = 16
"""Images by which a published set is known to be made of the same images."""
READ = 64
"""Images of a published file by which it is known again."""
OFFICIAL, GENERATED = "official", "generated"
UNMARKED = "unmarked files, taken as official"
"""What is known of files that nothing says to be generated."""


@final
class Unusable(RunError):
    """A set that is damaged, or not whole."""


@final
@dataclass(frozen=True, eq=False)
class Fresh:
    """Changed copies of the images of a split, made when they are asked for, and only of those that are."""

    split: Split
    kind: Kind
    seed: int = 0
    source: str = GENERATED
    instead_of: str = ""
    """Why an official set that was found is not used, if there is one."""

    @property
    def about(self) -> str:
        """How it is generated."""
        return _generated(self.kind, self.seed)

    def known_by(self, name: str) -> str:
        """The seed and the way of making; the images are those of the evaluation."""
        return self.about

    def frames(self, name: str) -> int:
        """As many as the protocol says."""
        return PERTURBATIONS[name].frames

    def images(self, name: str, severity: int | None, rows: Labels) -> Bytes:
        """Of these rows: (n, 1, h, w, c) at a severity, or all frames, (n, frames, h, w, c)."""
        x, numbers = bytes_of(self.split, rows), numbers_of(rows)
        if severity is not None:
            return corrupt(x, name, severity, seed=self.seed, rows=numbers)[:, None]
        return perturb_sequence(x, name, seed=self.seed, rows=numbers)


@final
@dataclass(frozen=True, eq=False)
class Stored:
    """Changed copies of the images of a split, read from a folder piece by piece."""

    folder: Path
    count: int
    source: str
    about: str
    instead_of: str = ""
    """Why an official set that was found is not used, if there is one."""

    def known_by(self, name: str) -> str:
        """Of a generated set, how it was made; of a published one, a digest of some of its images."""
        if self.source == GENERATED:
            return self.about
        return f"{OFFICIAL} {_sample(_opened(self.folder, name))}"

    def frames(self, name: str) -> int:
        """As many as the file has."""
        return int(_opened(self.folder, name).shape[1])

    def images(self, name: str, severity: int | None, rows: Labels) -> Bytes:
        """Of these rows: (n, 1, h, w, c) at a severity, or all frames, (n, frames, h, w, c)."""
        file, at = _opened(self.folder, name), rows.numpy()
        return file[at] if severity is None else file[(severity - 1) * self.count + at][:, None]


ShiftedSet: TypeAlias = Fresh | Stored


def find_set(split: Split, kind: Kind, names: Sequence[str], folder: str | Path | None = None) -> ShiftedSet:
    """The set of a split's images that has these corruptions ("c") or perturbations ("p").

    It is looked for in a folder and up to two levels below it: in the one that is given, which must then have
    it, or the cache, without which it is made as it is needed. A published set goes before a generated one;
    where one in the cache is damaged or not whole, that is said. One of another seed is not taken from the
    cache, so that numbers do not depend on what was made before.
    """
    where = cache_folder() if folder is None else Path(folder).expanduser()
    known = CORRUPTIONS if kind == "c" else PERTURBATIONS
    places = [where, *(path for deep in ("*", "*/*") for path in sorted(where.glob(deep)) if path.is_dir())]
    reasons, unusable, found = list[str](), list[str](), list[Stored]()
    for place in places:
        if any(_is_kind(place, name, kind) for name in known):
            try:
                found.append(_stored(place, kind, names, split))
            except RunError as error:
                reasons.append(str(error))
                if isinstance(error, Unusable) and not (place / MARKER).is_file():
                    unusable.append(str(error))
    fresh = Fresh(split, kind)
    if folder is None:
        found = [one for one in found if one.source == OFFICIAL or one.about == fresh.about]
    best = min(found, key=lambda one: one.source == GENERATED, default=fresh if folder is None else None)
    if best is not None and best.source == GENERATED and unusable:
        warnings.warn(f"{unusable[0]}; {GENERATED} images are used in place of official ones", stacklevel=2)
        return replace(best, instead_of=unusable[0])
    if best is not None:
        return best
    layout = f"{next(iter(names))}.npy as in CIFAR-10-{kind.upper()}"
    raise RunError(
        "; ".join(reasons) or f"{where}: no set found, expected {layout} in it or up to two levels below"
    )


def _stored(folder: Path, kind: Kind, names: Iterable[str], split: Split) -> Stored:
    """A set that is there, checked against the split it must be made of."""
    n, shape = len(split), bytes_of(split, torch.arange(1)).shape[1:]
    there, lacking = _readable(folder, names)
    for name, got in there.items():
        whole = (len(SEVERITIES) * n, *shape) if kind == "c" else (n, *got.shape[1:2], *shape)
        if got.dtype != np.uint8 or got.shape != whole:
            raise RunError(
                f"{folder / name}.npy: got {got.dtype} of shape {got.shape}, expected uint8 of {whole}; "
                "evaluate on the images that it was made of"
            )
    labels, missing = _readable(folder, [LABELS.removesuffix(".npy")])
    lacking += missing if kind == "c" or (folder / LABELS).is_file() else []
    for found in labels.values():
        if not np.array_equal(found, np.tile(split.labels.numpy(), len(found) // n)):
            raise RunError(f"{folder / LABELS}: other labels than those of the data; give the set made of it")
    marker = read_marker(folder)
    if marker is None and there:
        _check_same_images(folder, kind, next(iter(there)), split)
    # Last, because of files of other images nobody has to know that they are not whole.
    if lacking:
        raise lacking[0]
    if marker is None:
        return Stored(folder, n, OFFICIAL, f"{UNMARKED} (known by {_digest(folder, kind)})")
    if marker.get("source") != source_digest(split) or marker.get("generation") != GENERATION:
        raise RunError(f"{folder}: generated from other images or in another way; generate it again")
    return Stored(folder, n, GENERATED, _generated(kind, int(marker["seed"])))


def _readable(folder: Path, names: Iterable[str]) -> tuple[dict[str, Any], list[Unusable]]:
    """The arrays of these names, and what is wrong with the others."""
    there, wrong = dict[str, Any](), list[Unusable]()
    for name in names:
        try:
            there[name] = _opened(folder, name)
        except Unusable as error:
            wrong.append(error)
    return there, wrong


def _digest(folder: Path, kind: Kind) -> str:
    """By which a set without a marker is known again: some images of every file of it."""
    found = hashlib.sha256()
    for name, file in _readable(folder, CORRUPTIONS if kind == "c" else PERTURBATIONS)[0].items():
        found.update(f"{name} {_sample(file)} ".encode())
    return found.hexdigest()[:8]


def _sample(file: Any) -> str:
    some = file[:: max(len(file) // READ, 1)]
    return hashlib.sha256(np.ascontiguousarray(some).tobytes()).hexdigest()[:16]


def _check_same_images(folder: Path, kind: Kind, name: str, split: Split) -> None:
    """Every image of a sample must be nearer to its own changed copy than to those of the others.

    Of sequences it is the frame in the middle, because those that move an image begin far from it.
    """
    rows = torch.arange(len(split))[:: max(len(split) // SAMPLE, 1)][:SAMPLE]
    file = _opened(folder, name)
    at = rows.numpy()
    theirs = (file[at] if kind == "c" else file[at, file.shape[1] // 2]).astype(np.int64)
    mine = bytes_of(split, rows).astype(np.int64)
    apart = np.abs(mine[:, None] - theirs[None]).mean(axis=(2, 3, 4))
    right = int((apart.argmin(1) == np.arange(len(rows))).sum())
    if 2 * right < len(rows):
        raise RunError(
            f"{folder / name}.npy: {len(rows) - right} of {len(rows)} images are not those of the data; "
            "give the set made of it, in the same order"
        )


def _generated(kind: Kind, seed: int) -> str:
    return f"{GENERATED} with seed {seed} ({NOTES[kind]}; version {GENERATION})"


def _is_kind(folder: Path, name: str, kind: Kind) -> bool:
    """By its dimensions: a file of sequences has one more."""
    if not (folder / f"{name}.npy").is_file():
        return False
    try:
        return _opened(folder, name).ndim == (4 if kind == "c" else 5)
    except RunError:
        return True  # and what is wrong with it is said when it is read


def _opened(folder: Path, name: str) -> Any:
    """An array that stays on the disk."""
    file = folder / f"{name}.npy"
    if not file.is_file():
        raise Unusable(f"{folder}: has no {file.name}; make or get it, or give another folder")
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Unusable(f"{file}: cannot be read ({error}); get or make it again") from None
