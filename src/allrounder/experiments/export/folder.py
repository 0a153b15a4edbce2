"""The folder of an export: written beside its place and then renamed, so that it is complete or absent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from allrounder.errors import RunError
from allrounder.experiments.combined_run import check_free
from allrounder.system.files import explain_write_errors, fsync, hash_file, temporary_path, write_text
from allrounder.types import Weights

RECORD_FILE = "export.json"
"""Where the network comes from, and how the export was checked."""
FORMAT_VERSION = 1


@contextmanager
def create_folder(out: Path) -> Generator[Path]:
    """Yield a new folder that becomes `out` at the end of the context, and is removed after an error.

    Raises RunError if `check_place` does.
    """
    check_place(out)
    temporary = temporary_path(out)
    with explain_write_errors(out):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for path in sorted(temporary.rglob("*"), reverse=True):
                fsync(path)
            if out.exists():
                out.rmdir()  # empty, or this fails
            temporary.rename(out)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync(out.parent)


def check_place(out: Path) -> None:
    """Raise RunError if a folder exists and is not empty, or if it is the working folder."""
    check_free(out)
    if out.resolve() == Path.cwd():
        raise RunError(f"{out}: is the working folder, which is not replaced; name a new folder inside of it")


def write_record(file: Path, fields: Mapping[str, Any]) -> None:
    """Write facts about an export, with the digests of the files beside it, as plain JSON."""
    folder = file.parent
    digests = {
        path.relative_to(folder).as_posix(): hash_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = {"format": FORMAT_VERSION, **fields, "sha256": digests}
    write_text(file, json.dumps(record, indent=1) + "\n")


def write_safetensors(file: Path, weights: Weights) -> None:
    """Write a state dict for libraries that read safetensors of torch."""
    file.touch()
    permissions = file.stat().st_mode
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(permissions)  # save_file makes it private


def write_state_dict(file: Path, weights: Weights) -> None:
    """Write a state dict of plain tensors, which torch.load reads with weights_only=True."""
    file.parent.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    torch.save(weights, buffer)
    file.write_bytes(buffer.getbuffer())  # if this fails, it is an OSError; torch raises others
