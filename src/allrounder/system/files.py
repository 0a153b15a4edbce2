"""Atomic writes, folder locks and numbered folders: after a crash, a file is either complete or absent."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from allrounder.errors import RunError

LOCK_FILE = ".lock"
MANIFEST = "manifest.json"
"""The file that is written last into a folder of tensors: a folder that has it is complete."""


def temporary_path(path: Path) -> Path:
    """The path beside `path` under which it is written, and to which it is moved before it is deleted."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def lock_folder(folder: Path, activity: str) -> Generator[None]:
    """Hold an exclusive lock on a folder, or raise; it ends with the process, and its file stays."""
    with (folder / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process is {activity} here; wait for it or stop it") from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder. Nothing is created, but for a moment this process
    has a shared lock."""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; an existing file is replaced."""
    temporary = temporary_path(path)
    temporary.write_text(text, encoding="utf-8")
    fsync(temporary)
    temporary.replace(path)


def fsync(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def newest_folder(parent: Path, prefix: str) -> Path | None:
    """The complete folder `prefix-NUMBER` with the largest number."""
    complete = [(n, path) for path, n in numbered_folders(parent, prefix) if (path / MANIFEST).is_file()]
    return max(complete)[1] if complete else None


def numbered_folders(parent: Path, prefix: str) -> list[tuple[Path, int]]:
    """The folders named exactly `prefix-NUMBER`; a user's copy such as `prefix-NUMBER-copy` is left out."""
    matches = [(path, re.fullmatch(rf"{prefix}-(\d+)", path.name)) for path in parent.glob(f"{prefix}-*")]
    return [(path, int(match[1])) for path, match in matches if match]
