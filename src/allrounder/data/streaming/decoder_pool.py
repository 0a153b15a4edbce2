"""Processes that decode images while others train on the ones before.

Every process has a thread here that hands it one piece of work after the other. The processes are programs of
their own, in a session of their own: a script need not be written for them, signals of the terminal do not
reach them, and they end when nobody can ask them any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import BinaryIO, TypeAlias, cast, final

from allrounder.data.streaming import decode
from allrounder.data.streaming.decode import DONE, END, Reading
from allrounder.errors import DataError

MOST = 8
"""More processes than this must be asked for."""
PATIENCE = 10.0
"""Seconds that a process may take to end before it is killed."""
LARGEST = 16
"""Images of a piece of work."""

Piece: TypeAlias = "Future[bytes]"
Errands: TypeAlias = "SimpleQueue[tuple[Piece, bytes] | None]"


def suitable() -> int:
    """One process for every core this one may use, but for its own, and at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, cores - 1)


@final
class Crew:
    """Some decoding processes, started when they are first needed."""

    def __init__(self, workers: int) -> None:
        assert workers > 0, "without processes there is no crew"
        self.workers = workers
        self._errands: Errands = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # A copy of this process that was forked has none of the threads.
        self._home = os.getpid()
        self.close = weakref.finalize(self, _close, self._errands, self._threads, self._home)
        """End the processes; also done at the end of this one, or when nobody has the crew any more."""

    @property
    def here(self) -> bool:
        """Whether it can be asked: from the process that made it, and until it is closed."""
        return self._home == os.getpid() and self.close.alive

    def ask(self, reading: Reading, paths: Sequence[str]) -> list[Piece]:
        """Have files decoded; the pieces, in order, give the bytes of some images each."""
        if not self._threads:
            for number in range(self.workers):
                name = f"decoding-{number + 1}"
                self._threads.append(
                    threading.Thread(target=_tend, args=(self._errands,), name=name, daemon=True)
                )
                self._threads[-1].start()
        each = max(1, min(LARGEST, -(-len(paths) // (2 * self.workers))))
        pieces: list[Piece] = []
        for start in range(0, len(paths), each):
            asked = {"reading": asdict(reading), "paths": paths[start : start + each]}
            pieces.append(Future())
            self._errands.put((pieces[-1], json.dumps(asked).encode()))
        return pieces


@final
class _Decoder:
    """One decoding process, started again if it ended while it was not asked to."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def answer(self, question: bytes) -> bytes:
        """The pixels; a process that was killed is replaced once, as it may not be the images' fault."""
        code = None
        for _ in range(2):
            process = self.process = self.process or _start()
            with suppress(OSError, EOFError):
                return _exchange(process, question)
            code = self.end()
        files = cast(list[str], json.loads(question)["paths"])
        raise DataError(
            f"{files[0]}, or one of the {len(files) - 1} after it: two processes ended with code {code} when "
            "they decoded it; if memory is short use fewer workers, else workers = 0 to see what is wrong"
        )

    def end(self) -> int | None:
        """Let the process end; its exit code."""
        process, self.process = self.process, None
        if process is None:
            return None
        # A copy of this process that was forked may hold the pipe open, so that its end is not seen.
        with suppress(OSError):
            to = cast(BinaryIO, process.stdin)
            to.write(END)
            to.flush()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                cast(BinaryIO, pipe).close()
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", decode.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Ask and wait for the answer; an answer cut short is an EOFError."""
    to, back = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    to.write(len(question).to_bytes(4, "big") + question)
    to.flush()
    head = back.read(9)
    size = int.from_bytes(head[1:], "big")
    body = back.read(size) if len(head) == 9 else b""
    if len(head) < 9 or len(body) < size:
        raise EOFError
    if head[:1] != DONE:
        raise DataError(body.decode())
    return body


def _tend(errands: Errands) -> None:
    """Hand one process the pieces of work that come, until none does."""
    decoder = _Decoder()
    while (errand := errands.get()) is not None:
        piece, question = errand
        if piece.set_running_or_notify_cancel():
            try:
                piece.set_result(decoder.answer(question))
            except BaseException as error:  # It belongs to whoever waits for the piece.
                piece.set_exception(error)
        del errand, piece
    decoder.end()


def _close(errands: Errands, threads: Sequence[threading.Thread], home: int) -> None:
    if home != os.getpid():
        return
    with suppress(Empty):
        while (errand := errands.get_nowait()) is not None:
            errand[0].cancel()
    for _ in threads:
        errands.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(PATIENCE)
