"""Tables and progress bars print users' texts as they are, in the width of the output."""

from __future__ import annotations

import io

import pytest

from allrounder.cli.display import JobBar, PlainConsole, ProgressBars, print_numbers
from allrounder.cli.echo import PIPE_WIDTH, QUIET

ODD = "[bold]a[/bold] :x: [red]"
"""Rich would turn this into styles and an emoji."""


def test_a_table_prints_markup_unchanged(capsys: pytest.CaptureFixture[str]):
    print_numbers((ODD, "b"), [(ODD, ":smile:")])
    assert capsys.readouterr().out.count(ODD) == 2


def test_progress_prints_markup_unchanged(capsys: pytest.CaptureFixture[str]):
    with ProgressBars([ODD], overall=ODD) as bars:
        bars.update(ODD, 1, 1, ODD)
        JobBar(bars, ODD, prefix=ODD).log(ODD)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{ODD} {ODD} 1/1" and second == ODD + ODD


def test_bars_of_a_terminal_print_markup_unchanged(monkeypatch: pytest.MonkeyPatch):
    bars = ProgressBars([ODD], overall=ODD)
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stdout", terminal)
    bars.console.print(bars.progress.get_renderable())
    assert terminal.getvalue().count(ODD) == 2


def test_long_lines_are_left_to_the_terminal(capsys: pytest.CaptureFixture[str]):
    with ProgressBars([]) as bars:
        bars.log("a word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_quiet_bars_print_nothing(capsys: pytest.CaptureFixture[str]):
    token = QUIET.set(True)
    with ProgressBars(["job"]) as bars:
        bars.update("job", 1, 1)
        bars.log("a note")
    QUIET.reset(token)
    assert capsys.readouterr().out == ""


def test_piped_output_has_the_width_of_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert PlainConsole().width == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert PlainConsole().width == 72


def test_a_job_that_was_not_announced_gets_its_own_bar(capsys: pytest.CaptureFixture[str]):
    with ProgressBars(["worker 1"]) as bars:
        bars.update("", 5, 5, "masking check")
    assert "masking check 5/5" in capsys.readouterr().out
