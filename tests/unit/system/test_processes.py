"""Jobs in processes of their own: what they tell, and what their deaths leave."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from multiprocessing.connection import Connection

import pytest

from allrounder.errors import Interrupted, RunError
from allrounder.system.processes import _run_job, run_jobs
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.system.signals import EXIT_RESUMABLE, stop_on_signals

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.usefixtures("forking"),
]


def counts(name: str, send: ProgressCallback, *, up_to: int) -> None:
    for done in range(up_to):
        send(ProgressEvent(name, done, up_to))


def dies_in_the_middle_of_a_note(name: str, send: ProgressCallback) -> None:
    """As a process that is killed while it writes."""
    send(ProgressEvent(name, 1, 2))

    def half(self: Connection, data: bytes) -> None:
        os.write(self.fileno(), len(data).to_bytes(4, "big") + data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Connection, "_send_bytes", half)  # noqa: B010
    send(ProgressEvent(name, 2, 2))


def counts_until_told(name: str, send: ProgressCallback) -> None:
    """A job that looks for signals, as trainings and evaluations do."""
    with stop_on_signals() as stop:
        for done in range(10**9):
            send(ProgressEvent(name, done, 10**9))
            if stop.signal is not None:
                raise Interrupted(stop.signal)


def fails(name: str, send: ProgressCallback) -> None:
    raise ValueError("cannot be done")


def fails_without_a_word(name: str, send: ProgressCallback) -> None:
    raise ValueError


def test_failure_without_message_is_reported():
    with pytest.raises(RunError, match=r"1 of 1 .*\n  a: ValueError"):
        run_jobs({"a": fails_without_a_word}, 1, lambda event: None)


def test_all_events_arrive_in_order():
    events = list[ProgressEvent]()
    run_jobs({name: partial(counts, up_to=500) for name in ("a", "b", "c")}, 2, events.append)
    for name in ("a", "b", "c"):
        assert [event.done for event in events if event.name == name] == list(range(500))


def test_job_killed_while_writing_does_not_affect_others():
    events = list[ProgressEvent]()
    jobs = {"dies": dies_in_the_middle_of_a_note, "fails": fails, "lasts": partial(counts, up_to=500)}
    with pytest.raises(RunError) as failed:
        run_jobs(jobs, 2, events.append)
    assert "2 of 3 runs failed" in str(failed.value)
    assert "dies: its process ended with code -9" in str(failed.value)
    assert "fails: cannot be done" in str(failed.value)
    assert [event.done for event in events if event.name == "lasts"] == list(range(500))
    assert ProgressEvent("dies", 1, 2) in events


def test_error_in_progress_callback_is_raised():
    names = set[str]()

    def full(event: ProgressEvent) -> None:
        names.add(event.name)
        if len(names) == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        run_jobs({name: counts_until_told for name in ("a", "b")}, 2, full)
    assert not multiprocessing.active_children(), "they were let end"


def test_job_stops_when_parent_is_gone():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def work() -> None:
        here.close()  # a copy would keep the pipe open
        _run_job(counts_until_told, "a", there)

    process = context.Process(target=work)
    process.start()
    assert here.recv() == ProgressEvent("a", 0, 10**9)
    here.close()
    process.join(30)
    assert process.exitcode == EXIT_RESUMABLE
