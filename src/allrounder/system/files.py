"""Files that are either whole or absent: tensors as safetensors, facts as JSON, folders that appear and
vanish at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.nn.state import Weights

MANIFEST, LOCK = "manifest.json", ".lock"


def aside(path: Path) -> Path:
    """Where something lies that is not whole yet, or no longer."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def locked(folder: Path, doing: str) -> Generator[None]:
    """Keep other processes out of a folder; the lock is gone with the process, its file stays."""
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process is {doing} here; wait for it or stop it") from None
        yield


def write_text(path: Path, text: str) -> None:
    """Replace a file in one move."""
    temporary = aside(path)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_folder(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write named sets of tensors with a manifest last, under another name, then move the whole into
    place."""
    temporary = aside(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files: dict[str, str] = {}
    for name, weights in tensors.items():
        file = temporary / f"{name}.safetensors"
        save_file({key: _plain(tensor) for key, tensor in weights.items()}, file)
        sync(file)
        files[file.name] = _digest(file)
    write_text(temporary / MANIFEST, json.dumps({**facts, "files": files}, indent=1))
    sync(temporary)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    sync(path.parent)


def read_facts(path: Path) -> dict[str, Any]:
    """The manifest of a folder that `write_folder` made."""
    try:
        facts: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(facts, dict) or "files" not in facts:
            raise ValueError("it lists no files")
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: the manifest cannot be read ({error}); the folder is not whole") from None
    return cast(dict[str, Any], facts)


def read_tensors(path: Path, name: str) -> Weights:
    """One set of tensors, checked against the manifest's digest."""
    file = path / f"{name}.safetensors"
    files = cast(dict[str, str], read_facts(path)["files"])
    if file.name not in files:
        have = ", ".join(entry.removesuffix(".safetensors") for entry in files)
        raise RunError(f'{path}: holds no "{name}" (there are: {have})')
    try:
        if _digest(file) != files[file.name]:
            raise RunError(
                f"{file}: differs from its manifest; it was changed or damaged after it was written"
            )
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error})") from None


def newest(parent: Path, prefix: str) -> Path | None:
    """The whole folder `prefix-NUMBER` with the largest number."""
    whole = {number: path for path, number in _numbered(parent, prefix) if (path / MANIFEST).is_file()}
    return whole[max(whole)] if whole else None


def prune(parent: Path, prefix: str, keep: Path | None) -> None:
    """Delete the folders of a prefix but one, each at once, and what an interrupted write left behind."""
    for left in parent.glob(f".{prefix}-*.tmp"):
        shutil.rmtree(left)
    for path, _ in _numbered(parent, prefix):
        if path != keep:
            shutil.rmtree(path.rename(aside(path)))


def sync(path: Path) -> None:
    """Make a file, or the list of names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _numbered(parent: Path, prefix: str) -> list[tuple[Path, int]]:
    """The folders `prefix-NUMBER`; a copy that somebody made beside them is none."""
    found = [(path, re.fullmatch(rf"{prefix}-(\d+)", path.name)) for path in parent.glob(f"{prefix}-*")]
    return [(path, int(match[1])) for path, match in found if match]


def _plain(tensor: Tensor) -> Tensor:
    """A copy as safetensors wants it: it keeps no strides, and refuses tensors that share memory.

    Whoever restores copies into tensors that have their strides and ties.
    """
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
