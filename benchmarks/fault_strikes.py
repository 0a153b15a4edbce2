"""Faults inside a copy of this process: at its k-th file operation, inside a write, or in its clock."""

from __future__ import annotations

import datetime
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Place = Literal["main", "worker"]
"""The process of a command, or a process that it starts."""
OPERATIONS = (
    *("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.listdir"),
    *("os.scandir", "shutil.rmtree"),
)
"""The audit events of Python that are file operations. A file is opened once more before it is flushed, so
every written file has a moment at which it is complete and has its temporary name."""
WRITES = ("os.rename", "os.mkdir")
"""The writing ones apart from `open`; a full disk still deletes."""
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


def watch(folder: Path, react: Callable[[Place, str, bool], object]) -> None:
    """Call `react` before every file operation below a folder: with the process, the path, if it writes."""
    start, main = str(folder), os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not arguments or not isinstance(arguments[0], str | Path):
            return
        path = os.path.abspath(arguments[0])
        if path.startswith(start):
            writes = event in WRITES or (event == "open" and bool(arguments[2] & WRITE_FLAGS))
            react("main" if os.getpid() == main else "worker", path, writes)

    sys.addaudithook(hook)


def count_operations(folder: Path, counts: Path) -> None:
    """Count the file operations below a folder: a byte for each, in a file for this process or workers."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    handles = {place: os.open(f"{counts}-{place}", flags, 0o644) for place in ("main", "worker")}
    watch(folder, lambda place, path, writes: os.write(handles[place], b"."))


def signal_at(folder: Path, place: Place, call: int, number: signal.Signals, mark: Path) -> None:
    """Send a signal to the process that makes the k-th file operation, before it makes it."""
    seen = 0

    def react(where: Place, path: str, writes: bool) -> None:
        nonlocal seen
        seen += where == place
        if where == place and seen == call:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT))
            os.kill(os.getpid(), number)

    watch(folder, react)


def fail_from(folder: Path, place: Place, call: int, number: int, count: int, mark: Path) -> None:
    """Let some writing file operations fail, from the k-th on, with an error of the system."""
    seen = 0

    def react(where: Place, path: str, writes: bool) -> None:
        nonlocal seen
        seen += where == place and writes
        if where == place and writes and call <= seen < call + count:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT))
            raise OSError(number, os.strerror(number), path)

    watch(folder, react)


def kill_inside_a_write(size: int) -> None:
    """Let the system kill this process when a file grows beyond a size, in the middle of a write."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def set_clock_back(after: int, seconds: float) -> None:
    """Let the time of day jump back at the k-th time that it is asked for."""
    asked, real = 0, time.time

    def now() -> float:
        nonlocal asked
        asked += 1
        return real() - (seconds if asked > after else 0)

    class Shifted(datetime.datetime):
        """A datetime whose `now` uses the changed clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            """Return the changed time."""
            return cls.fromtimestamp(now(), tz)

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    for name, module in list(sys.modules.items()):
        if name.startswith("allrounder") and getattr(module, "datetime", None) is datetime.datetime:
            vars(module)["datetime"] = Shifted
