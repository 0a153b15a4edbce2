"""Several jobs at once, each in a process of one thread.

A signal to the parent reaches the jobs, which save and stop; calling again goes on where they were.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from allrounder.errors import Interrupted, RunError, WorldError
from allrounder.system.signals import stop_on_signals

SAVED = 75
"""The exit code of a job that was stopped and can go on."""


MOST = 1000
"""Notes that are taken from one job before the others are looked at."""


@final
@dataclass(frozen=True)
class Note:
    """What a job tells the parent: how far it is, and with what."""

    name: str
    done: int = 0
    total: int = 1
    what: str = ""
    broken: int = 0
    """Of what is done, in an evaluation; and the passes that took, in batches."""
    forwards: int = 0
    backwards: int = 0
    failed: str = ""


Send: TypeAlias = Callable[[Note], None]
Job: TypeAlias = Callable[[str, Send], object]
"""Gets its own name and a way to report; must be importable, because processes are spawned."""


def run_jobs(jobs: Mapping[str, Job], workers: int, show: Send) -> None:
    """Run all jobs, `workers` at once, in the given order; every job is tried, failures are reported
    together."""
    waiting = dict(jobs)
    running: dict[str, _Worker] = {}
    failed: dict[str, str] = {}
    told = False
    with _ended(running), stop_on_signals() as stop:
        while running or (waiting and stop.signal is None):
            while waiting and len(running) < workers and stop.signal is None:
                name = next(iter(waiting))
                running[name] = _Worker.started(name, waiting.pop(name))
            if stop.signal is not None and not told:
                told = True  # once: a second signal would end a job before it has saved
                for worker in running.values():
                    worker.process.terminate()
            wait([way for worker in running.values() for way in worker.ways()], timeout=0.2)
            for name, worker in list(running.items()):
                ended = worker.process.exitcode is not None  # asked first: no note comes after it
                worker.drain(show, failed)
                if ended:
                    code = running.pop(name).close()
                    if code != 0 and (code != SAVED or stop.signal is None):
                        failed.setdefault(name, f"its process ended with code {code}")
        if stop.signal is not None:
            lost = f"; not saved: {', '.join(failed)}" if failed else ""
            raise Interrupted(f"{stop.signal}: stopped, call again to continue{lost}")
    if failed:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, the others are done:\n{reasons}")


@contextmanager
def _ended(running: Mapping[str, _Worker]) -> Generator[None]:
    """After an error here, let the jobs that still run save and end, and hear them out until they have."""
    try:
        yield
    finally:
        for worker in running.values():
            worker.process.terminate()
        while left := [worker for worker in running.values() if worker.process.exitcode is None]:
            wait([way for worker in left for way in worker.ways()], timeout=0.2)
            for worker in left:
                worker.drain(lambda note: None, {})


@final
@dataclass
class _Worker:
    """A job's process and the pipe its notes come through.

    Each has a pipe of its own, because a process may be killed at any moment: one that dies while it writes
    would leave the lock of a common queue closed for all.
    """

    process: BaseProcess
    notes: Any
    told_all: bool = False

    @classmethod
    def started(cls, name: str, job: Job) -> _Worker:
        """A process that does the job."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(job, name, there))
        process.start()
        there.close()  # so that the pipe ends with the process
        return cls(process, here)

    def ways(self) -> list[Any]:
        """What tells that there is something to do for it."""
        return [self.process.sentinel] if self.told_all else [self.process.sentinel, self.notes]

    def drain(self, show: Send, failed: dict[str, str]) -> None:
        """Pass on what has arrived; more than a pipe holds would be another turn's."""
        for _ in range(MOST):
            if (note := self._next()) is None:
                break
            if note.failed:
                failed[note.name] = note.failed
            else:
                show(note)

    def _next(self) -> Note | None:
        try:
            return self.notes.recv() if not self.told_all and self.notes.poll() else None
        except (EOFError, OSError):  # it ended, perhaps inside a note
            self.told_all = True
            return None

    def close(self) -> int:
        """Free what it held; how it ended."""
        self.notes.close()
        assert self.process.exitcode is not None
        return self.process.exitcode


def _work(job: Job, name: str, notes: Any) -> None:
    os.setsid()  # signals of the terminal are the parent's to pass on
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a fork would have the parent's
    torch.set_num_threads(1)

    def send(note: Note) -> None:
        try:
            if not notes.closed:
                notes.send(note)
        except BrokenPipeError:  # who listened was killed, so that nobody will end this job
            notes.close()
            signal.raise_signal(signal.SIGTERM)

    try:
        job(name, send)
    except Interrupted:
        sys.exit(SAVED)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        send(Note(name, failed=str(error)))
    except BaseException:
        send(Note(name, failed=traceback.format_exc()))
        raise


def check_can_travel(workers: int, **parts: Any) -> None:
    """Other processes get copies of all this, and what pickle says of a failure helps nobody."""
    if workers == 1:
        return
    for what, part in parts.items():
        try:
            _Weigher().dump(part)
        except Exception as error:  # Whatever the parts of a stranger's network may raise.
            said = f"{type(part).__name__} cannot be handed to other processes ({error})"
            raise WorldError(
                f"workers: the {what}: {said}; define it at the top of a module that can be imported, "
                "or use workers=1"
            ) from None


@final
class _Weigher(ForkingPickler):
    """Pickles something as a new process would get it, but throws it away, and leaves tensors out."""

    def __init__(self) -> None:
        super().__init__(_Nowhere())

    def persistent_id(self, obj: Any) -> str | None:
        """A tensor is shared, not copied."""
        return "tensor" if isinstance(obj, Tensor) else None


@final
class _Nowhere:
    def write(self, data: bytes) -> int:
        """All of it was written."""
        return len(data)
