"""Run code on hostile input in a process of its own, with a limit of time and memory."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from allrounder.errors import AllrounderError

SECONDS = 60
"""Far more than any refusal takes, and far less than reading what is refused."""
MEMORY = 2**30
MAX_MESSAGE = 60_000


def refusal(read: Callable[[], object]) -> str:
    """The message of the error of ours that reading ends with; anything else fails the test."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(read, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(SECONDS), f"got no answer within {SECONDS} s"
        is_ours, message = ours.recv()
    finally:
        process.kill()
        process.join()
    assert is_ours, message
    assert len(message) < MAX_MESSAGE
    return message


def _report(read: Callable[[], object], connection: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    try:
        connection.send((False, f"got {str(read())[:100]}, expected an error"))
    except AllrounderError as error:
        connection.send((True, str(error)))
    except BaseException as error:
        connection.send((False, f"got {type(error).__name__}: {str(error)[:300]}, expected an error of ours"))
