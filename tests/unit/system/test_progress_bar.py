"""The bar of a training, on every kind of screen."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from allrounder.system.progress import NullProgress, StatusProgress, TrainingStatus, report_status
from allrounder.system.progress_bar import TrainingBar
from allrounder.system.screen import LineScreen, NotebookScreen, TerminalScreen, find_screen

STATUS = TrainingStatus(
    1,
    4,
    losses={"natural": 0.5, "linf": 1.25},
    shares={"natural": 0.4, "linf": 0.6},
    accuracies={"natural": 0.801, "Linf:0.1": 0.45},
    next_exchange=3,
)
FACTS = (
    "loss natural 0.500, linf 1.250",
    "validation natural 80.1%, Linf:0.1 45.0%",
    "shares natural 0.40, linf 0.60; next exchange in epoch 3",
)


class Shell:
    """Records what a notebook would show."""

    kernel = None

    def __init__(self) -> None:
        self.display_pub = self
        self.published: list[dict[str, Any]] = []

    def publish(self, **facts: Any) -> None:
        self.published.append(facts)


def show(text: str, height: int = 40) -> list[str]:
    """The lines that a terminal shows after it received a text."""
    lines, row = [""] * height, 0
    for part in text.replace("\x1b[J", "\0").replace("\n", "\r\n").split("\r"):
        if part.endswith("A") and "\x1b[" in part:
            part, _, count = part.rpartition("\x1b[")
            up = int(count[:-1])
        else:
            up = 0
        if part.startswith("\n"):
            row, part = row + 1, part[1:]
        if part.startswith("\0"):
            lines[row:] = [""] * (height - row)
            part = part[1:]
        if part:
            lines[row] = part
        row -= up
    return [line for line in lines if line]


def test_a_terminal_shows_one_bar_with_everything_and_keeps_messages_above_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    with TrainingBar("mine", TerminalScreen(stream)) as bar:
        bar.report(TrainingStatus(0, 4))
        bar.begin(8, 0)
        assert show(stream.getvalue()) == ["mine: epoch 1/4 [" + "-" * 24 + "] step 0/8, ETA unknown"]
        bar.step(2)
        bar.report(STATUS)
        bar.log("a message")
    message, first, *facts = show(stream.getvalue())
    assert message == "note: a message"
    assert first.startswith("mine: epoch 2/4 [" + "#" * 6 + "-" * 18 + "] step 2/8, ETA ")
    assert tuple(line.strip() for line in facts) == FACTS


def test_a_terminal_cuts_long_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    TrainingBar("mine", TerminalScreen(stream)).report(STATUS)
    assert max(map(len, show(stream.getvalue()))) == 29


def test_a_notebook_shows_one_output_and_escapes_it():
    shell = Shell()
    bar = TrainingBar("<mine>", NotebookScreen(shell))
    bar.log("a message")
    bar.report(STATUS)
    bar.begin(8, 2)
    first, *others = shell.published
    assert (first["update"], {event["update"] for event in others}) == (False, {True})
    assert len({event["transient"]["display_id"] for event in shell.published}) == 1
    content = others[-1]["data"]
    assert content["text/plain"].startswith("note: a message\n<mine>: epoch 2/4")
    assert "&lt;mine&gt;: epoch 2/4" in content["text/html"]


@pytest.mark.parametrize(("epochs", "lines"), [(3, 3), (10, 10), (200, 10)])
def test_a_file_gets_a_line_per_epoch_and_at_most_ten(epochs: int, lines: int):
    stream = io.StringIO()
    bar = TrainingBar("mine", LineScreen(stream))
    bar.report(TrainingStatus(0, epochs))
    bar.begin(epochs, 0)
    for epoch in range(1, epochs + 1):
        bar.step(epoch)
        bar.report(TrainingStatus(epoch, epochs, losses={"linf": 1.0}))
    written = stream.getvalue().splitlines()
    assert len(written) == lines
    assert written[-1].startswith(f"mine: epoch {epochs}/{epochs}: loss linf 1.000; finished")


def test_a_terminal_is_not_drawn_at_every_step():
    stream = io.StringIO()
    bar = TrainingBar("mine", TerminalScreen(stream))
    bar.begin(100_000, 0)
    before = len(stream.getvalue())
    for t in range(1000):
        bar.step(t)
    assert len(stream.getvalue()) - before < 100 * 100


def test_the_last_step_is_drawn_at_the_end_and_nothing_if_there_was_none():
    stream = io.StringIO()
    with TrainingBar("mine", TerminalScreen(stream)) as bar:
        bar.log("already finished")
    assert show(stream.getvalue()) == ["note: already finished"]
    with pytest.raises(KeyError), bar:
        bar.begin(100, 0)
        bar.step(57)
        raise KeyError
    assert "step 57/100" in show(stream.getvalue())[1]


def test_the_remaining_time_counts_steps_of_this_session_only(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("allrounder.system.progress_bar.time.monotonic", lambda: now[0])
    bar = TrainingBar("mine", LineScreen(io.StringIO()))
    bar.begin(100, 90)
    now[0] = 10.0
    bar.step(95)
    assert bar._eta() == "ETA 10 s"


def test_the_screen_fits_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(find_screen(), LineScreen)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(find_screen(), TerminalScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(find_screen(), LineScreen)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Shell))
    assert isinstance(find_screen(), NotebookScreen)


def test_a_progress_without_a_report_gets_none():
    assert not isinstance(NullProgress(), StatusProgress)
    report_status(NullProgress(), STATUS)
