"""Exclusive writing: only one process at a time creates a file or folder.

`filelock` would weaken it: it leaves lock files behind, and on disks without locks it fails or falls back to
a lock that survives a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from allrounder.errors import DataError

UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of network disks without locks; there, nothing is locked."""
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def partial_path(target: Path) -> Path:
    """The path of the incomplete download of a file."""
    return target.with_name(f"{target.name}.part")


@contextmanager
def exclusive_write(target: Path, on_wait: Callable[[], object] = lambda: None) -> Generator[None]:
    """Hold the lock of `target`; disk errors become a DataError, and a full disk removes the partial file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(target, on_wait):
            try:
                yield
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    partial_path(target).unlink(missing_ok=True)
                raise
    except OSError as error:
        problem, remedy = f"cannot be written ({error.strerror or error})", "make the folder writable"
        if error.errno in FULL_ERRNOS:
            problem, remedy = "the disk is full", "free some space"
        raise DataError(f"{target}: {problem}; {remedy}, or move the cache with ALLROUNDER_DATA") from error


@contextmanager
def file_lock(target: Path, on_wait: Callable[[], object] = lambda: None) -> Generator[None]:
    """Hold a lock that ends with the process; `on_wait` is called if another process holds it."""
    path = target.with_name(f".{target.name}.lock")
    while True:
        with path.open("ab") as file:
            _acquire(file.fileno(), on_wait)
            if not _is_current(file.fileno(), path):
                continue
            try:
                yield
                return
            finally:
                path.unlink(missing_ok=True)


def _acquire(handle: int, on_wait: Callable[[], object]) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRNOS:
            raise


def _is_current(handle: int, path: Path) -> bool:
    """Whether an open lock file is still at its path; the previous holder may have removed it meanwhile."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False
