"""Files and folders that one process at a time makes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What disks in a network say that know no locks; on those everybody is alone."""


@contextmanager
def alone(target: Path, waits: Callable[[], object] = lambda: None) -> Generator[None]:
    """Keep others away from a file or folder while it is made; who is told `waits` while others make it."""
    path = target.with_name(f".{target.name}.lock")
    while (handle := _held(path, waits)) is None:
        pass
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _held(path: Path, waits: Callable[[], object]) -> int | None:
    """The lock file, locked; nothing if whoever had it has removed it meanwhile, so that it locks nothing."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None
