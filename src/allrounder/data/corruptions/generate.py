"""Making whole sets in the layout of CIFAR-10-C and CIFAR-10-P, to be kept and used again.

    generated.json      that this was generated, by what, with which seed, from which images
    labels.npy          the labels; of a -C set five times, once for every severity
    fog.npy             -C: (5 n, h, w, c) bytes, severity after severity
    rotate.npy          -P: (n, frames, h, w, c) bytes

A set without generated.json is taken for one that was published. A file is there whole or not at all: call
again after an interruption, and what is finished is not made again. Only one process at a time makes a set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch

from allrounder.config.fields import nearest
from allrounder.data.base import Split
from allrounder.data.corruptions import CORRUPTIONS, corrupt
from allrounder.data.corruptions.base import SEVERITIES, Bytes
from allrounder.data.corruptions.perturbations import PERTURBATIONS, perturb_sequence
from allrounder.errors import Interrupted, RunError
from allrounder.system.files import LOCK, aside, locked, sync, write_text
from allrounder.system.processes import Note, Send
from allrounder.system.signals import stop_on_signals
from allrounder.types import Labels

Kind: TypeAlias = Literal["c", "p"]
Write: TypeAlias = Callable[[str, Bytes, Callable[[int], None]], None]
"""Fills the array of a name, and tells how many of its rows are there."""

MARKER, LABELS = "generated.json", "labels.npy"
GENERATION = 2
"""Raised whenever other bytes come out."""
AT_ONCE, NUMBERS = 128, 1 << 22
"""Images that are in memory at once, and the numbers they have together at most: a corruption keeps several
copies of them, of eight bytes each."""
NOTES: dict[Kind, str] = {
    "c": "not the published files; frost has a computed texture in place of photographs",
    "p": "not the published files",
}


def bytes_of(split: Split, rows: Labels) -> Bytes:
    """Images of a split as bytes, (n, h, w, c); what was bytes comes out the same."""
    x = split.fetch(rows).mul(255).round().to(torch.uint8)
    return x.permute(0, 2, 3, 1).contiguous().numpy()


def numbers_of(rows: Labels) -> list[int]:
    """Rows as plain numbers."""
    return cast(list[int], rows.tolist())


def pieces(count: int, size: int) -> Iterator[Labels]:
    """0 .. count - 1, so many at once."""
    for start in range(0, count, size):
        yield torch.arange(start, min(start + size, count))


def at_once(split: Split, most: int, copies: int = 1) -> int:
    """How many images of a split to change at once, each into so many: at most so many, fewer if large."""
    return max(1, min(most // copies, NUMBERS // (copies * bytes_of(split, torch.arange(1)).size)))


def source_digest(split: Split) -> str:
    """What tells the images of one split from those of another: all their bytes and labels."""
    found = hashlib.sha256(split.labels.numpy().tobytes())
    for rows in pieces(len(split), at_once(split, 1024)):
        found.update(bytes_of(split, rows).tobytes())
    return found.hexdigest()


def make_c(
    split: Split,
    out: str | Path,
    *,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    seed: int = 0,
    progress: Send = lambda note: None,
) -> Path:
    """Corrupt all images of a split at all severities, into a folder in the layout of CIFAR-10-C."""
    _check_names("corruption", corruptions, CORRUPTIONS)
    n, size = len(split), at_once(split, AT_ONCE)

    def write(name: str, to: Bytes, tell: Callable[[int], None]) -> None:
        for severity in SEVERITIES:
            for rows in pieces(n, size):
                at = (severity - 1) * n + int(rows[0])
                images = bytes_of(split, rows)
                to[at : at + len(rows)] = corrupt(images, name, severity, seed=seed, rows=numbers_of(rows))
                tell(at + len(rows))

    shape = (len(SEVERITIES) * n, *bytes_of(split, torch.arange(1)).shape[1:])
    shapes = dict.fromkeys(corruptions, shape)
    return _make(Path(out), "c", split, seed, shapes, len(SEVERITIES), write, progress)


def make_p(
    split: Split,
    out: str | Path,
    *,
    perturbations: Sequence[str] = tuple(PERTURBATIONS),
    seed: int = 0,
    progress: Send = lambda note: None,
) -> Path:
    """Make the perturbation sequences of all images of a split, in the layout of CIFAR-10-P."""
    _check_names("perturbation", perturbations, PERTURBATIONS)
    one = bytes_of(split, torch.arange(1)).shape[1:]

    def write(name: str, to: Bytes, tell: Callable[[int], None]) -> None:
        for rows in pieces(len(split), at_once(split, AT_ONCE)):
            numbers = numbers_of(rows)
            to[numbers[0] : numbers[-1] + 1] = perturb_sequence(
                bytes_of(split, rows), name, seed=seed, rows=numbers
            )
            tell(numbers[-1] + 1)

    shapes = {name: (len(split), PERTURBATIONS[name].frames, *one) for name in perturbations}
    return _make(Path(out), "p", split, seed, shapes, 1, write, progress)


def marker_of(kind: Kind, split: Split, seed: int) -> dict[str, Any]:
    """What is written beside a generated set."""
    return {
        "generated": True,
        "kind": kind,
        "generation": GENERATION,
        "seed": seed,
        "images": len(split),
        "source": source_digest(split),
        "by": f"allrounder {version('allrounder')}",
        "note": NOTES[kind],
    }


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What is said of a generated set; none of a published one."""
    file = folder / MARKER
    if not file.is_file():
        return None
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        return dict(found)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete the folder and make it again") from None


def _make(
    out: Path,
    kind: Kind,
    split: Split,
    seed: int,
    shapes: Mapping[str, tuple[int, ...]],
    times: int,
    write: Write,
    progress: Send,
) -> Path:
    """Begin a folder, or go on with it, and write the files that are not there."""
    _check_ours(out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "making a set"), stop_on_signals() as stop:
        _begin(out, marker_of(kind, split, seed))
        labels = np.tile(split.labels.numpy(), times)
        small = labels.astype(np.uint8) if labels.max() < 256 else labels
        if not (out / LABELS).is_file():
            _whole(out / LABELS, small.shape, small.dtype, lambda to: np.copyto(to, small))
        for number, (name, shape) in enumerate(shapes.items()):
            file, total = out / f"{name}.npy", shape[0]
            if file.is_file():
                progress(Note("", total, total, f"{name} (there already)"))
                continue

            def tell(done: int, name: str = name, total: int = total, number: int = number) -> None:
                progress(Note("", done, total, name))
                if stop.signal is not None:
                    made = f"{number} of {len(shapes)} files are made"
                    raise Interrupted(f"{out}: {stop.signal}, {made}; call again to continue")

            _whole(file, shape, np.dtype(np.uint8), lambda to, name=name, tell=tell: write(name, to, tell))
    return out


def _check_ours(out: Path) -> None:
    """Raise where there is something that was not generated here."""
    beginnings = {LOCK, aside(out / MARKER).name}
    if (out / MARKER).is_file() or not out.exists():
        return
    if not out.is_dir() or any(path.name not in beginnings for path in out.iterdir()):
        raise RunError(f"{out}: holds files that were not generated here; choose another folder")


def _begin(out: Path, marker: dict[str, Any]) -> None:
    old = read_marker(out)
    for key in ("kind", "generation", "seed", "images", "source"):
        if old is not None and old.get(key) != marker[key]:
            raise RunError(
                f"{out}: holds a set whose {key} is {old.get(key)}, here it is {marker[key]}; "
                "choose another folder, nothing was changed"
            )
    if old is None:
        # First of all, so that nothing generated is ever taken for published.
        write_text(out / MARKER, json.dumps(marker, indent=1))


def _whole(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Callable[[Any], None]) -> None:
    """Write an array through a map into a file that appears when it is finished."""
    temporary = aside(file)
    try:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        fill(array)
        array.flush()
        del array
        sync(temporary)
        temporary.replace(file)
        sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _check_names(what: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    if not names:
        raise ValueError(f"{what}s: got none, expected some of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what}: got {name!r}, expected some of {', '.join(known)}{nearest(name, known)}"
            )
