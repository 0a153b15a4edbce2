"""The kinds of faults. Each does one to a work, continues it, and returns how the trial ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fault_damage import damage_a_file
from fault_processes import Child, Failure, Skip, check_output, descendants, error_lines, poll, send, wait_for
from fault_strikes import fail_from, kill_inside_a_write, set_clock_back
from fault_trials import Trial, contents, kill_at_operation
from fault_victims import WORK

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS = (0, 1, 75)
"""The exit codes of a work that was disturbed."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
YEAR = 365 * 24 * 3600
LARGE_DISK = "64m"


def signal_at_a_moment(trial: Trial) -> str:
    """Send signals at random moments, to the process of the command or to one that it started."""
    trial.setup()
    trial.happened = False
    for _ in range(1 if trial.victim.real else trial.rng.choice((1, 1, 2, 3))):
        number = trial.rng.choice(SIGNALS)
        # While a new process starts Python and loads the command line, an interrupt belongs to Python.
        seconds = trial.rng.uniform(0.2 if trial.victim.real else 0.02, 0.9) * trial.reference.seconds
        children = trial.start()
        target = _wait_and_send(trial, children, number, seconds)
        wait_for(children)
        trial.facts.append(f"{number.name} to {target} after {seconds:.2f} s")
        for child in children:
            check_output(child, (*ENDS, -number, 128 + number))
    return trial.finish()


def _wait_and_send(trial: Trial, children: list[Child], number: signal.Signals, seconds: float) -> str:
    """Send a signal after some time, unless the work has ended; return who got it."""
    wants_worker, choice = trial.rng.random() < 0.5, trial.rng.random()
    end = time.monotonic() + seconds
    while time.monotonic() < end and poll(children) and any(child.code is None for child in children):
        time.sleep(0.005)
    mains = [child.pid for child in children if child.code is None]
    workers = [pid for main in mains for pid in descendants(main)] if wants_worker else []
    targets = workers or mains
    if not targets or not send(pid := targets[int(choice * len(targets))], number):
        return "nobody"
    trial.happened = True
    if pid in workers:
        return f"worker {workers.index(pid) + 1}"
    return f"process {[child.pid for child in children].index(pid)}"


def stop_and_continue(trial: Trial) -> str:
    """Stop a process for a while and let it continue; the work ends by itself."""
    trial.setup()
    children = trial.start()
    seconds, pause = trial.rng.uniform(0.02, 0.9) * trial.reference.seconds, trial.rng.uniform(0.2, 1.5)
    trial.happened = False
    target = _wait_and_send(trial, children, signal.SIGSTOP, seconds)
    trial.facts.append(f"SIGSTOP to {target} after {seconds:.2f} s, for {pause:.2f} s")
    time.sleep(pause)
    for pid in descendants(os.getpid()):
        send(pid, signal.SIGCONT)
    wait_for(children)
    for child in children:
        check_output(child, [0])
    trial.compare()
    return "identical"


def signal_at_an_operation(trial: Trial) -> str:
    """Send signals at file operations, also while files have their temporary names."""
    trial.setup()
    for _ in range(trial.rng.choice((1, 1, 2))):
        number = trial.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        for child in kill_at_operation(trial, number):
            check_output(child, (*ENDS, -number, 128 + number))
    return trial.finish()


def kill_in_a_write(trial: Trial) -> str:
    """Let the system kill processes in the middle of a write, which leaves a part of a file."""
    trial.setup()
    largest = max(len(content) for content in contents(trial.reference.folder / WORK).values())
    size = int(largest ** trial.rng.uniform(0.4, 1.0))
    trial.facts.append(f"killed when a file has more than {size} bytes")
    children = trial.run(lambda number: partial(kill_inside_a_write, size))
    trial.happened = any(child.code != 0 for child in children)
    for child in children:
        check_output(child, (*ENDS, -signal.SIGXFSZ))
    return trial.finish()


def disk_error(trial: Trial) -> str:
    """Let file operations fail with an error of the system: one of them, or all from there on."""
    trial.setup()
    index, place, call = trial.choose_operation()
    number, count = trial.rng.choice(DISK_ERRORS), trial.rng.choice((1, 1_000_000))
    call = call // 3 + 1  # about a third of the operations write
    trial.facts.append(
        f"{errno.errorcode[number]} at write {call} of process {index} ({place}), {count} times"
    )
    mark = trial.logs / "mark"
    strike = partial(fail_from, trial.folder, place, call, number, count, mark)
    children = trial.run(lambda child: strike if child == index else lambda: None)
    trial.happened = mark.exists()
    for child in children:
        check_output(child, (0, 1) if number == errno.EIO else ENDS)
    return trial.finish()


@contextmanager
def disk(folder: Path) -> Generator[Callable[[str], None]]:
    """Mount a disk in memory at a folder; yields a function that changes its options."""
    folder.mkdir(parents=True)

    def mount(options: str) -> None:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Skip(
                f"this process may not mount a disk ({getattr(error, 'stderr', '') or error})"
            ) from None

    mount(f"size={LARGE_DISK}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def full_disk(trial: Trial) -> str:
    """Let the disk have less space than the work needs; free some, and continue."""
    with disk(trial.folder) as remount:
        trial.setup()
        state = os.statvfs(trial.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        sizes = [len(content) for content in contents(trial.reference.folder / WORK).values()]
        needed = sum(4096 * (1 + size // 4096) for size in sizes)
        space = int(needed * trial.rng.uniform(0.0, 1.2))
        remount(f"size={(used + space) // 4096 * 4096 + 4096}")
        trial.facts.append(f"{space // 1024} kB for {needed // 1024} kB")
        children = trial.run()
        trial.happened = any(child.code for child in children)
        for child in children:
            check_output(child, (0, 75) if len(children) == 1 else ENDS)
        remount(f"size={LARGE_DISK}")
        return trial.finish()


def read_only_disk(trial: Trial) -> str:
    """Let the folder of an unfinished or finished work be read-only; then make it writable, and continue."""
    with disk(trial.folder) as remount:
        trial.setup()
        state = trial.rng.choice(("new", "interrupted", "interrupted", "finished"))
        trial.facts.append(f"read-only after the work was {state}")
        if state == "interrupted":
            trial.interrupt()
        elif state == "finished":
            trial.finish()
        remount("ro")
        trial.happened = True
        children = trial.run()
        for child in children:
            check_output(child, (0, 1))
        if state == "finished" and all(child.code == 0 for child in children):
            trial.compare()
        elif not any(WORK in line for child in children for line in error_lines(child)):
            raise Failure(f"no error names the folder: {error_lines(children[0])}")
        for child in trial.read():
            check_output(child, (0, 1))
        remount("rw")
        return trial.finish()


def two_at_once(trial: Trial) -> str:
    """Start the same work a second time in the same folder, or read it, while it runs."""
    trial.setup()
    first = trial.start()
    seconds = trial.rng.uniform(0, 0.9) * trial.reference.seconds
    end = time.monotonic() + seconds
    while time.monotonic() < end and poll(first):
        time.sleep(0.005)
    reads = trial.rng.random() < 0.4
    trial.happened = any(child.code is None for child in first)
    trial.facts.append(f"{'readers' if reads else 'a second one'} after {seconds:.2f} s")
    if reads:
        commands = trial.victim.readers(trial.folder)
        command = trial.rng.choice(commands)
        second = trial.start_commands([command])
    else:
        second = trial.start()
    wait_for([*first, *second])
    for child in (*first, *second):
        check_output(child, (0, 1))
    for child in first if reads else (*first, *second):
        if child.code == 1 and not any("another process" in line for line in error_lines(child)):
            raise Failure(f"no error says that another process is there: {error_lines(child)}")
    return trial.finish()


def clock_set_back(trial: Trial) -> str:
    """Set the clock of the processes back by minutes to years, while they run or between two sessions."""
    trial.setup()
    after, seconds = trial.rng.choice((0, 1, 2, 5)), YEAR ** trial.rng.uniform(0.3, 1.1)
    trial.facts.append(f"back by {seconds / 3600:.2f} h when asked for the {after + 1}. time")
    if trial.rng.random() < 0.6:
        trial.interrupt()
        future = time.time() + seconds
        for path in trial.folder.rglob("*"):
            os.utime(path, (future, future))
    trial.happened = True
    shift = partial(set_clock_back, after, seconds)
    for child in (*trial.run(lambda number: shift), *trial.read(shift)):
        check_output(child, [0])
    trial.compare()
    return trial.finish()


KINDS: dict[str, Callable[[Trial], str]] = {
    "signal": signal_at_a_moment,
    "stop": stop_and_continue,
    "operation": signal_at_an_operation,
    "torn-write": kill_in_a_write,
    "disk-error": disk_error,
    "full-disk": full_disk,
    "read-only": read_only_disk,
    "damage": damage_a_file,
    "two-at-once": two_at_once,
    "clock": clock_set_back,
}
DESCRIPTIONS = {
    "signal": "SIGKILL, SIGTERM or SIGINT, up to three times, to the command, a rank or a worker",
    "stop": "SIGSTOP, and SIGCONT after 0.2 to 1.5 seconds",
    "operation": "a signal before a file is opened, renamed or deleted, also under its temporary name",
    "torn-write": "killed in the middle of a write, which leaves a part of a file",
    "disk-error": "one or all writing operations fail: no space, no quota, an input/output error",
    "full-disk": "a disk that is too small; then it gets more space",
    "read-only": "a disk that is read-only; then it becomes writable",
    "damage": "a stored file is cut, emptied, overwritten, deleted, or has a flipped bit",
    "two-at-once": "the same command again, or one that reads, in the same folder at the same time",
    "clock": "the clock is set back by minutes to years, while the work runs or between two sessions",
}
"""What happens, for tables."""
