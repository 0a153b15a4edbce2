"""Files that are either whole or absent: tensors as safetensors, facts as JSON, folders that appear at
once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.weights import Weights

MANIFEST = "manifest.json"


def write_text(path: Path, text: str) -> None:
    """Replace a file in one move."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_folder(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write named sets of tensors with a manifest last, under another name, then move the whole into
    place."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files: dict[str, str] = {}
    for name, weights in tensors.items():
        file = temporary / f"{name}.safetensors"
        # safetensors keeps no strides; whoever restores copies into tensors that have theirs.
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in weights.items()}, file)
        _sync(file)
        files[file.name] = _digest(file)
    write_text(temporary / MANIFEST, json.dumps({**facts, "files": files}, indent=1))
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    _sync(path.parent)


def read_facts(path: Path) -> dict[str, Any]:
    """The manifest of a folder that `write_folder` made."""
    try:
        return cast(dict[str, Any], json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: the manifest cannot be read ({error}); the folder is not whole") from None


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
    found = [path for path in parent.glob(f"{prefix}-*") if (path / MANIFEST).is_file()]
    return max(found, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)


def prune(parent: Path, prefix: str, keep: Path | None) -> None:
    """Delete the folders of a prefix but one, and what an interrupted write left behind."""
    for path in [*parent.glob(f"{prefix}-*"), *parent.glob(f".{prefix}-*.tmp")]:
        if path != keep:
            shutil.rmtree(path)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
