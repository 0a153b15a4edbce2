"""Run jobs in parallel, each in its own process with one thread.

A signal to the parent is passed on to the jobs, which save their state and stop; calling again resumes them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from typing_extensions import override

from allrounder.errors import AllrounderError, Interrupted, RunError, WorldError
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.system.signals import EXIT_RESUMABLE, stop_on_signals

MAX_EVENTS_PER_TURN = 1000
"""Events that are read from one job before those of the next."""

Job: TypeAlias = Callable[[str, ProgressCallback], object]
"""Called with its name and a callback for its progress. Must be importable, because processes are spawned."""


@contextmanager
def use_threads(count: int) -> Generator[None]:
    """Compute with `count` threads in this process, and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_jobs(jobs: Mapping[str, Job], workers: int, on_progress: ProgressCallback) -> None:
    """Run all jobs in order, `workers` at a time. A failed job stops no other; failures are raised at the
    end."""
    waiting = dict(jobs)
    running: dict[str, _Worker] = {}
    failed: dict[str, str] = {}
    resumable: set[str] = set()
    terminated = False
    with _terminate_on_exit(running), stop_on_signals() as stop:
        while running or (waiting and stop.signal is None):
            while waiting and len(running) < workers and stop.signal is None:
                name = next(iter(waiting))
                running[name] = _Worker.start(name, waiting.pop(name))
            if stop.signal is not None and not terminated:
                terminated = True  # only once: a second signal would end a job before it has saved
                for worker in running.values():
                    worker.process.terminate()
            _wait(running.values())
            for name, worker in list(running.items()):
                code = worker.process.exitcode  # checked first: no event can follow
                worker.drain(on_progress, failed)
                if code is not None:
                    running.pop(name).pipe.close()
                    if code == EXIT_RESUMABLE:
                        resumable.add(name)
                    if code != 0 and (code != EXIT_RESUMABLE or stop.signal is None):
                        failed.setdefault(name, f"its process ended with code {code}")
        if stop.signal is not None:
            unsaved = f"; not saved: {', '.join(failed)}" if failed else ""
            raise Interrupted(f"{stop.signal}: stopped, call again to continue{unsaved}")
    if failed:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        error = RunError(f"{len(failed)} of {len(jobs)} runs failed, the others are done:\n{reasons}")
        error.resumable = failed.keys() <= resumable
        raise error


@contextmanager
def _terminate_on_exit(running: Mapping[str, _Worker]) -> Generator[None]:
    """After an error in the parent, terminate the jobs and empty their pipes until they have saved and
    ended."""
    try:
        yield
    finally:
        for worker in running.values():
            worker.process.terminate()
        while alive := [worker for worker in running.values() if worker.process.exitcode is None]:
            _wait(alive)
            for worker in alive:
                worker.drain(lambda event: None, {})


@final
@dataclass
class _Worker:
    """The process of a job, and the pipe that its events come through: one pipe for each, because a process
    that is killed while it writes would leave the lock of a common queue closed for all others."""

    process: BaseProcess
    pipe: Any
    pipe_closed: bool = False

    @classmethod
    def start(cls, name: str, job: Job) -> _Worker:
        """Start a process that runs the job."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_job, args=(job, name, sender))
        process.start()
        sender.close()  # so that the pipe ends with the process
        return cls(process, receiver)

    def drain(self, on_progress: ProgressCallback, failed: dict[str, str]) -> None:
        """Pass on the events that have arrived, at most MAX_EVENTS_PER_TURN; errors go to `failed`."""
        for _ in range(MAX_EVENTS_PER_TURN):
            if (event := self._receive()) is None:
                break
            if event.error:
                failed[event.name] = event.error
            else:
                on_progress(event)

    def _receive(self) -> ProgressEvent | None:
        try:
            return self.pipe.recv() if not self.pipe_closed and self.pipe.poll() else None
        except (EOFError, OSError):  # the process ended, perhaps while it wrote an event
            self.pipe_closed = True
            return None


def _wait(workers: Collection[_Worker]) -> None:
    """Wait until a process ends or sends an event, for at most 0.2 seconds."""
    pipes = [worker.pipe for worker in workers if not worker.pipe_closed]
    wait([*(worker.process.sentinel for worker in workers), *pipes], timeout=0.2)


def _run_job(job: Job, name: str, pipe: Any) -> None:
    os.setsid()  # signals of the terminal only reach the parent, which passes them on
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a forked process has the handlers of its parent
    torch.set_num_threads(1)

    def send(event: ProgressEvent) -> None:
        try:
            if not pipe.closed:
                pipe.send(event)
        except BrokenPipeError:  # the parent was killed and cannot terminate this job any more
            pipe.close()
            signal.raise_signal(signal.SIGTERM)

    try:
        job(name, send)
    except Interrupted:
        sys.exit(EXIT_RESUMABLE)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        send(ProgressEvent(name, error=str(error) or type(error).__name__))
        if isinstance(error, AllrounderError) and error.resumable:
            sys.exit(EXIT_RESUMABLE)
    except BaseException:
        send(ProgressEvent(name, error=traceback.format_exc()))
        raise


def check_picklable(workers: int, **objects: Any) -> None:
    """Raise WorldError if an object cannot be sent to worker processes; no-op for one worker."""
    if workers == 1:
        return
    for role, obj in objects.items():
        try:
            with open(os.devnull, "wb") as null:
                _PickleCheck(null).dump(obj)
        except Exception as error:  # a user's network may raise anything
            raise WorldError(
                f"workers: the {role}: {type(obj).__name__} cannot be sent to other processes ({error}); "
                "define it at the top level of an importable module, or use workers=1"
            ) from None


@final
class _PickleCheck(ForkingPickler):
    """Pickles an object as for another process, except tensors, which are shared and not copied."""

    @override
    def persistent_id(self, obj: Any) -> str | None:
        return "tensor" if isinstance(obj, Tensor) else None
