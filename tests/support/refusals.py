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
    is_refused, message = _run(read)
    assert is_refused, f"got {message}, expected an error of ours"
    assert len(message) < MAX_MESSAGE
    return message


def answer(compute: Callable[[], object], seconds: float = SECONDS) -> str:
    """What is computed, as text; an error fails the test."""
    is_refused, text = _run(compute, seconds)
    assert not is_refused, text
    return text


def _run(function: Callable[[], object], seconds: float = SECONDS) -> tuple[bool, str]:
    """Whether a function raises an error of ours, and its message or the result."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(function, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(seconds), f"got no answer within {seconds} s"
        try:
            return ours.recv()
        except EOFError:
            raise AssertionError("the process ended without an answer: a library crashed") from None
    finally:
        process.kill()
        process.join()


def _report(function: Callable[[], object], connection: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    try:
        connection.send((False, str(function())[:MAX_MESSAGE]))
    except AllrounderError as error:
        connection.send((True, str(error)))
    except BaseException as error:
        connection.send((False, f"{type(error).__name__}: {str(error)[:300]}"))
