"""Atomic writes, folder locks and numbered folders: after a crash, a file is either complete or absent.

All files are written through this module, which turns errors of the system into a StorageError.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from allrounder.errors import RunError, StorageError

LOCK_FILE = ".lock"
MANIFEST = "manifest.json"
"""The file that is written last into a folder of tensors: a folder that has it is complete."""
LOCK_ATTEMPTS, LOCK_PAUSE = 10, 0.02
"""How often a lock that another process holds is tried, and the seconds between two attempts."""
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def temporary_path(path: Path) -> Path:
    """The path beside `path` under which it is written, and to which it is moved before it is deleted."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def explain_write_errors(path: Path) -> Generator[None]:
    """Within the context, an error of the system becomes a StorageError that names `path` and what to do."""
    try:
        yield
    except StorageError:
        raise
    except UnicodeEncodeError as error:
        name = ascii(error.object[max(error.start - 20, 0) : error.end])
        advice = "rename that file or folder, or choose another one"
        raise StorageError(f"{path}: cannot be used, the name ...{name} is not UTF-8; {advice}") from None
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        if number in FULL_ERRNOS:
            advice = "free some space and call again, a training with --resume; what was saved is intact"
            problem = f"{path}: cannot be written, the disk is full; {advice}"
            raise StorageError(problem, resumable=True) from error
        reason = str(error) if number is None else os.strerror(number)
        advice = "make this place writable, or choose another folder"
        raise StorageError(f"{path}: cannot be written ({reason}); {advice}") from error


def _error_number(error: Exception) -> int | None:
    """The number of an error of the system; safetensors only has it in its message."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_location(folder: Path) -> None:
    """Raise StorageError if no folder can be at a path: below a file, or with a name that is too long or not
    UTF-8, which safetensors does not read."""
    with explain_write_errors(folder):
        try:
            str(folder.absolute()).encode()
            folder.stat()
        except FileNotFoundError:
            return


@contextmanager
def lock_folder(folder: Path, activity: str, *, wait: bool = False) -> Generator[None]:
    """Hold an exclusive lock on a folder; raise, or wait, if another process holds it. It ends with the
    process, and its file stays."""
    with explain_write_errors(folder):
        file = (folder / LOCK_FILE).open("a")
    with file:
        with explain_write_errors(folder):
            is_free = _acquire(file.fileno(), wait)
        if not is_free:
            raise RunError(f"{folder}: another process is {activity} here; wait for it or stop it")
        yield


def _acquire(handle: int, wait: bool) -> bool:
    """Lock an open file; return whether no other process holds its lock. Processes that call `is_locked` hold
    it for a moment, so a lock is tried several times."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder. Nothing is created, but for a moment this process
    has a shared lock."""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or it is not ours
        return False
    return False


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` create a temporary file, then flush it and rename it to `path`; an existing file is
    replaced."""
    temporary = temporary_path(path)
    with explain_write_errors(path):
        try:
            write(temporary)
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)
        except Exception:
            temporary.unlink(missing_ok=True)  # on a full disk, it takes the last space
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file; an interrupted call leaves a last line without its end."""
    with explain_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


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
