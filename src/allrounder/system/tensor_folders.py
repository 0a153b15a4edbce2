"""Folders of tensors that are written and deleted atomically: safetensors files, and a JSON manifest with
metadata and the digest of every file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.files import MANIFEST, fsync, hash_file, numbered_folders, temporary_path, write_text
from allrounder.types import Weights


def write_folder(
    path: Path, tensors: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, Any]
) -> None:
    """Write one safetensors file per entry of `tensors`, and the manifest last, into a temporary folder, then
    rename it to `path`. An existing folder is replaced."""
    temporary = temporary_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    digests: dict[str, str] = {}
    for name, weights in tensors.items():
        file = temporary / f"{name}.safetensors"
        save_file({key: contiguous_cpu_copy(tensor) for key, tensor in weights.items()}, file)
        fsync(file)
        digests[file.name] = hash_file(file)
    write_text(temporary / MANIFEST, json.dumps({**metadata, "files": digests}, indent=1))
    fsync(temporary)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    fsync(path.parent)


def read_manifest(path: Path) -> dict[str, Any]:
    """The metadata of a folder that `write_folder` wrote, with the digests of its files under "files"."""
    try:
        manifest: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or "files" not in manifest:
            raise ValueError("it lists no files")
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path}: the manifest cannot be read ({error}); the folder is incomplete or damaged"
        ) from None
    return cast(dict[str, Any], manifest)


def read_tensors(path: Path, name: str) -> Weights:
    """The tensors that were written as `name`, checked against the digest in the manifest."""
    file = path / f"{name}.safetensors"
    digests = cast(dict[str, str], read_manifest(path)["files"])
    if file.name not in digests:
        names = ", ".join(entry.removesuffix(".safetensors") for entry in digests)
        raise RunError(f'{path}: has no "{name}" (it has: {names})')
    try:
        if hash_file(file) != digests[file.name]:
            raise RunError(
                f"{file}: differs from its manifest; it was changed or damaged after it was written"
            )
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error})") from None


def prune_folders(parent: Path, prefix: str, keep: Path | None) -> None:
    """Delete all folders `prefix-NUMBER` except `keep`, each atomically, and those of interrupted writes."""
    for leftover in parent.glob(f".{prefix}-*.tmp"):
        shutil.rmtree(leftover)
    for path, _ in numbered_folders(parent, prefix):
        if path != keep:
            shutil.rmtree(path.rename(temporary_path(path)))


def contiguous_cpu_copy(tensor: Tensor) -> Tensor:
    """A copy that safetensors can write: it stores no strides and refuses tensors that share memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
