"""A lock so that only one process at a time creates a file or folder.

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

UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of network disks without locks; there, nothing is locked."""


@contextmanager
def file_lock(target: Path, on_wait: Callable[[], object] = lambda: None) -> Generator[None]:
    """Hold an exclusive lock while `target` is created; `on_wait` is called if another process holds it.

    The operating system releases the lock when the process ends, however it ends.
    """
    path = target.with_name(f".{target.name}.lock")
    while (handle := _try_lock(path, on_wait)) is None:
        pass
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _try_lock(path: Path, on_wait: Callable[[], object]) -> int | None:
    """Open and lock the lock file; None if its previous holder removed it meanwhile, so it locks nothing."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in UNSUPPORTED_ERRNOS:
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None
