"""Several jobs at once, each in a process of one thread.

A signal to the parent reaches the jobs, which save and stop; calling again goes on where they were.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from queue import Empty
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from allrounder.errors import Interrupted, RunError, WorldError
from allrounder.stopping import stop_on_signals

SAVED = 75
"""The exit code of a job that was stopped and can go on."""


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
Job: TypeAlias = Callable[[str, Send], None]
"""Gets its own name and a way to report; must be importable, because processes are spawned."""


def run_jobs(jobs: Mapping[str, Job], workers: int, show: Send) -> None:
    """Run all jobs, `workers` at once, in the given order; every job is tried, failures are reported
    together."""
    context = multiprocessing.get_context("spawn")
    notes: Any = context.Queue()
    waiting = dict(jobs)
    running: dict[str, Any] = {}
    failed: dict[str, str] = {}
    told = False
    with stop_on_signals() as stop:
        while running or (waiting and stop.signal is None):
            while waiting and len(running) < workers and stop.signal is None:
                name = next(iter(waiting))
                running[name] = context.Process(target=_work, args=(waiting.pop(name), name, notes))
                running[name].start()
            if stop.signal is not None and not told:
                told = True  # once: a second signal would end a job before it has saved
                for process in running.values():
                    process.terminate()
            _drain(notes, show, failed)
            for name in [name for name, process in running.items() if process.exitcode is not None]:
                code = running.pop(name).exitcode
                if code != 0 and (code != SAVED or stop.signal is None):
                    failed.setdefault(name, f"its process ended with code {code}")
        _drain(notes, show, failed)
        if stop.signal is not None:
            lost = f"; not saved: {', '.join(failed)}" if failed else ""
            raise Interrupted(f"{stop.signal}: stopped, call again to continue{lost}")
    if failed:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, the others are done:\n{reasons}")


def _work(job: Job, name: str, notes: Any) -> None:
    os.setsid()  # signals of the terminal are the parent's to pass on
    torch.set_num_threads(1)
    try:
        job(name, notes.put)
    except Interrupted:
        sys.exit(SAVED)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        notes.put(Note(name, failed=str(error)))
    except BaseException:
        notes.put(Note(name, failed=traceback.format_exc()))
        raise


def _drain(notes: Any, show: Send, failed: dict[str, str]) -> None:
    """Pass on what has arrived, waiting a moment for the first."""
    try:
        note = notes.get(timeout=0.2)
        while True:
            if note.failed:
                failed[note.name] = note.failed
            else:
                show(note)
            note = notes.get_nowait()
    except Empty:
        pass


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
