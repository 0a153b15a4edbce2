"""Processes that decode images ahead of time, while training uses earlier ones.

A thread of this process sends tasks to each decoder process. The decoders are separate programs in their own
session: user scripts need no `if __name__ == "__main__"`, the signals of the terminal do not reach them, and
they exit when their pipe closes. A killed decoder is replaced; torch's DataLoader would end the training.
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
from allrounder.data.streaming.decode import DONE, END_REQUEST, Crops, DecodeSpec
from allrounder.errors import DataError

MAX_DEFAULT_WORKERS = 8
"""The greatest default number of processes; users may set a higher one."""
SHUTDOWN_SECONDS = 10.0
"""How long a process may take to exit before it is killed."""
MAX_IMAGES_PER_TASK = 16

DecodeFuture: TypeAlias = "Future[bytes]"
TaskQueue: TypeAlias = "SimpleQueue[tuple[DecodeFuture, bytes] | None]"


def default_num_decoders() -> int:
    """One process for each core available to this process except its own, at most MAX_DEFAULT_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_DEFAULT_WORKERS, cores - 1)


@final
class DecoderPool:
    """A pool of decoder processes, started when the first task is submitted."""

    def __init__(self, workers: int) -> None:
        assert workers > 0, "a pool needs at least one process"
        self.workers = workers
        self._queue: TaskQueue = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # A forked copy of this process does not have the threads.
        self._owner_pid = os.getpid()
        self.close = weakref.finalize(self, _close, self._queue, self._threads, self._owner_pid)
        """Stop the processes; called automatically when the pool is collected or this process exits."""

    @property
    def is_usable(self) -> bool:
        """Whether tasks can be submitted: only in the process that created the pool, until it is closed."""
        return self._owner_pid == os.getpid() and self.close.alive

    def submit(
        self, spec: DecodeSpec, paths: Sequence[str], views: Sequence[Crops | None] = (None,)
    ) -> list[DecodeFuture]:
        """Decode files in the background; the futures give, in order, the pixels of a few images each: for
        every image all views, one after the other."""
        while len(self._threads) < self.workers:
            name = f"decoder-{len(self._threads) + 1}"
            thread = threading.Thread(target=_worker_loop, args=(self._queue,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        per_task = max(1, min(MAX_IMAGES_PER_TASK, -(-len(paths) // (2 * self.workers))))
        futures: list[DecodeFuture] = []
        for start in range(0, len(paths), per_task):
            rows = range(start, min(start + per_task, len(paths)))
            parts = [None if view is None else vars(view.select(rows)) for view in views]
            request = {"spec": asdict(spec), "paths": [paths[row] for row in rows], "views": parts}
            futures.append(Future())
            self._queue.put((futures[-1], json.dumps(request).encode()))
        return futures


@final
class _DecoderProcess:
    """One decoder process, restarted if it exits unexpectedly."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def request(self, message: bytes) -> bytes:
        """Return the pixels. A process that dies is replaced once, as the images may not be the cause."""
        code = None
        for _ in range(2):
            process = self.process = self.process or _start()
            with suppress(OSError, EOFError):
                return _send_request(process, message)
            code = self.stop()
        paths = cast(list[str], json.loads(message)["paths"])
        raise DataError(
            f"{paths[0]}, or one of the {len(paths) - 1} after it: two processes ended with code {code} when "
            "they decoded it; if memory is short use fewer workers, else workers = 0 to see what is wrong"
        )

    def stop(self) -> int | None:
        """Stop the process and return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return None
        # A forked copy of this process may keep the pipe open, so the decoder would not see its end.
        with suppress(OSError):
            stdin = cast(BinaryIO, process.stdin)
            stdin.write(END_REQUEST)
            stdin.flush()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                cast(BinaryIO, pipe).close()
        try:
            return process.wait(SHUTDOWN_SECONDS)
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


def _send_request(process: subprocess.Popen[bytes], message: bytes) -> bytes:
    """Send a request and wait for the response. Raises EOFError if the response is cut short."""
    stdin, stdout = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    stdin.write(len(message).to_bytes(4, "big") + message)
    stdin.flush()
    head = stdout.read(9)
    size = int.from_bytes(head[1:], "big")
    if len(head) < 9 or len(body := stdout.read(size)) < size:
        raise EOFError
    if head[:1] != DONE:
        raise DataError(body.decode())
    return body


def _worker_loop(queue: TaskQueue) -> None:
    """Send the tasks of the queue to one decoder process until the queue gives None."""
    decoder = _DecoderProcess()
    while (task := queue.get()) is not None:
        future, message = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(decoder.request(message))
            except BaseException as error:  # The thread that waits for the future raises it.
                future.set_exception(error)
        del task, future
    decoder.stop()


def _close(queue: TaskQueue, threads: Sequence[threading.Thread], owner_pid: int) -> None:
    if owner_pid != os.getpid():
        return
    with suppress(Empty):
        while (task := queue.get_nowait()) is not None:
            task[0].cancel()
    for _ in threads:
        queue.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(SHUTDOWN_SECONDS)
