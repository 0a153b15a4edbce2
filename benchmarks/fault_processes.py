"""Processes of a trial: commands of allrounder in copies of this process, or started as a user does.

A copy needs no time to import torch. This process must not start threads, which a copy would not have.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch

import allrounder as ar
from allrounder.attacks.apgd import Apgd
from allrounder.attacks.autoattack import AutoAttack
from allrounder.attacks.fab import Fab
from allrounder.attacks.square import Square
from allrounder.cli import main as cli
from allrounder.cli import run_evaluate, run_report, run_study, run_train

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.01
LONGEST = 300.0
"""Seconds after which a command hangs."""
LONGEST_ORPHAN = 60.0
"""Seconds for which a process may outlive the command that started it."""
SMALL_BUDGET = (
    Apgd(steps=5),
    Apgd(surrogate="dlr", targets=2, steps=5),
    Fab(targets=2, steps=5),
    Square(queries=50),
)
"""The stages of AutoAttack in copies of this process."""


class Failure(Exception):
    """A trial whose results differ, or that ends without a clear error."""


class Skip(Exception):
    """A trial that this machine does not allow."""


@final
@dataclass(frozen=True)
class Command:
    """A command of allrounder, run in a folder."""

    words: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    real: bool = False
    """Whether a new Python process runs it."""


@final
@dataclass
class Child:
    """A process that runs a command."""

    pid: int
    log: Path
    code: int | None = None
    """The exit code, or minus the signal that ended it; None while it runs."""

    def output(self) -> str:
        """Return what it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def prepare_copies(folder: Path) -> None:
    """Prepare this process to be copied: with one thread, as the parent of orphans, and after a training and
    an evaluation in a folder, because torch loads much at its first use."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    AutoAttack.stages = lambda self, norm: SMALL_BUDGET
    settings = ["epochs=1", "train_images=100", "model.width=2", "validation.images=20"]
    ar.train("embedded/generalist-d-nt-linf", folder / "run", overrides=settings, progress=False)
    probes = ["pgd-2@Linf:0.1", "aa@Linf:0.1"]
    ar.evaluate(
        ar.load(folder / "run"),
        ar.Embedded().load(),
        probes=probes,
        n=10,
        out=folder / "eval",
        options=ar.EvalOptions(check="note"),
    )
    assert all((run_evaluate, run_report, run_study, run_train))
    tasks = os.listdir("/proc/self/task")
    assert len(tasks) == 1, f"{len(tasks)} threads, of which a copy would have one"


def start(command: Command, log: Path, prepare: Callable[[], object] = lambda: None) -> Child:
    """Start a command in its own session; `prepare` is called first, in the copy of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = _run(command, log, prepare)
        except BaseException:  # as Python does at its end
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return Child(pid, log)


def _run(command: Command, log: Path, prepare: Callable[[], object]) -> int:
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (handle, 1), (handle, 2)):
        os.dup2(number, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(command.variables)
    os.chdir(command.folder)
    if command.real:
        os.execv(sys.executable, [sys.executable, "-m", "allrounder", *command.words])
    context = multiprocessing.get_context("fork")  # workers are copies, too
    module: Any = multiprocessing
    module.get_context = lambda method: context  # pyright: ignore[reportUnknownLambdaType]
    prepare()
    sys.argv = ["allrounder", *command.words]
    try:
        cli.main()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def wait_for(children: Sequence[Child], limit: float = LONGEST) -> None:
    """Wait until processes end, and then for all that they started."""
    _wait(lambda: all(child.code is not None for child in children), children, limit, "hangs")
    _wait(lambda: not descendants(os.getpid()), children, LONGEST_ORPHAN, "leaves processes behind")


def _wait(is_over: Callable[[], bool], children: Sequence[Child], limit: float, problem: str) -> None:
    end = time.monotonic() + limit
    while not poll(children) or not is_over():
        if time.monotonic() > end:
            names = "; ".join(describe(pid) for pid in descendants(os.getpid()))
            kill_all(children)
            raise Failure(f"{problem} after {limit:.0f} s: {names}")
        time.sleep(POLL_SECONDS)


def poll(children: Sequence[Child]) -> bool:
    """Record the ends of processes; return true."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return True
        for child in children:
            if child.pid == pid:
                child.code = os.waitstatus_to_exitcode(status)


def kill_all(children: Sequence[Child] = ()) -> None:
    """Kill every process that descends from this one."""
    while pids := descendants(os.getpid()):
        for pid in pids:
            send(pid, signal.SIGKILL)
        poll(children)
        time.sleep(POLL_SECONDS)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, directly or not, in the order of their start."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (facts := _stat(int(entry))):
            parents[int(entry)] = int(facts[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return []


def describe(pid: int) -> str:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"


def run_to_end(commands: Sequence[Command], logs: Path, name: str) -> list[Child]:
    """Run commands at the same time to their ends."""
    children = [start(command, logs / f"{name}-{number}.log") for number, command in enumerate(commands)]
    wait_for(children)
    return children


def check_output(child: Child, allowed: Sequence[int]) -> None:
    """Raise Failure unless a process ended with an allowed code, without a traceback, and with a message."""
    text = child.output()
    tail = " | ".join(text.strip().splitlines()[-4:])
    if child.code not in allowed:
        raise Failure(f"exit code {child.code}, expected one of {sorted(set(allowed))}: {tail}")
    if "Traceback (most recent call last)" in text or "this is a bug" in text:
        raise Failure(f"a traceback (exit code {child.code}): {tail}")
    if child.code in (1, 2, 75) and not error_lines(child):
        raise Failure(f"exit code {child.code} without an error message: {tail}")


def error_lines(child: Child) -> list[str]:
    """Return the message of an error: the line that starts it and the lines that follow it, or the last line
    if the command was used wrongly or stopped."""
    lines = child.output().strip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return lines[starts[-1] :]
    return lines[-1:] if child.code in (2, 75) else []
