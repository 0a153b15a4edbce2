"""Folders of tensors that are written and deleted atomically: safetensors files, and a JSON manifest with
metadata and the digest of every file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.checked_files import ADVICE, CHANGED, damage_error, read_manifest, write_json
from allrounder.system.files import (
    MANIFEST,
    explain_write_errors,
    fsync,
    hash_file,
    numbered_folders,
    temporary_path,
)
from allrounder.types import Weights


def write_folder(
    path: Path, tensors: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, Any]
) -> None:
    """Write one safetensors file per entry of `tensors`, and the manifest last, into a temporary folder, then
    rename it to `path`. An existing folder is replaced."""
    temporary = temporary_path(path)
    with explain_write_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            digests: dict[str, str] = {}
            for name, weights in tensors.items():
                file = temporary / f"{name}.safetensors"
                _write_tensors(file, weights)
                digests[file.name] = hash_file(file)
            write_json(temporary / MANIFEST, {**metadata, "files": digests})
            fsync(temporary)
        except Exception:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, it takes the last space
            raise
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        fsync(path.parent)


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the permissions of other new files; `save_file` makes it private."""
    file.touch()
    permissions = file.stat().st_mode
    save_file({key: contiguous_cpu_copy(tensor) for key, tensor in tensors.items()}, file)
    file.chmod(permissions)
    fsync(file)


def read_tensors(path: Path, name: str) -> Weights:
    """The tensors that were written as `name`, checked against the digest in the manifest."""
    file = path / f"{name}.safetensors"
    digests = cast(dict[str, str], read_manifest(path)["files"])
    if file.name not in digests:
        names = ", ".join(entry.removesuffix(".safetensors") for entry in digests)
        raise RunError(f'{path}: has no "{name}" (it has: {names})')
    _check_file(file, digests[file.name])
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise damage_error(file, error, ADVICE) from None


def check_folder(path: Path) -> None:
    """Raise RunError unless all files of a folder are those that were written."""
    for name, digest in cast(dict[str, str], read_manifest(path)["files"]).items():
        _check_file(path / name, digest)


def _check_file(file: Path, digest: str) -> None:
    try:
        if not file.is_file():  # a pipe would wait forever
            raise FileNotFoundError("there is no such file, or it is a folder, a pipe or a device")
        current = hash_file(file)
    except OSError as error:
        raise damage_error(file, error, ADVICE) from None
    if current != digest:
        raise damage_error(file, f"it differs from its manifest: {CHANGED}", ADVICE)


def prune_folders(parent: Path, prefix: str, keep: Path | None) -> None:
    """Delete all folders `prefix-NUMBER` except `keep`, each atomically, and those of interrupted writes."""
    with explain_write_errors(parent):
        for leftover in parent.glob(f".{prefix}-*.tmp"):
            shutil.rmtree(leftover)
        for path, _ in numbered_folders(parent, prefix):
            if path != keep:
                shutil.rmtree(path.rename(temporary_path(path)))


def contiguous_cpu_copy(tensor: Tensor) -> Tensor:
    """A copy that safetensors can write: it stores no strides and refuses tensors that share memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
