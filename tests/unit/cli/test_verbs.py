"""Every verb has --debug and --quiet, and its help fits the terminal and names the exit codes."""

from __future__ import annotations

import pytest

from tests.unit.cli.test_main import Command, allrounder, commands, flat

__all__ = ["allrounder"]  # a fixture


def test_every_help_names_the_exit_codes(allrounder: Command):
    for name in commands():
        shown = flat(allrounder(*name.split(), "--help").out)
        assert all(f"{code} " in shown.partition("Exit codes: ")[2] for code in (0, 1, 2, 75, 130)), name


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_is_wrapped_at_the_width_of_the_output(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch, width: int
):
    monkeypatch.setenv("COLUMNS", str(width))
    text = allrounder("train", "--help").out
    assert max(map(len, text.splitlines())) <= width
    paragraph = "SIGINT and SIGTERM save a checkpoint after the current step and exit with code 75"
    assert (paragraph in text) == (width == 120), "a line break of the docstring is not one of the help"


def test_quiet_show_prints_the_recipe_only(allrounder: Command):
    loud, quiet = allrounder("show", "embedded/nt"), allrounder("show", "embedded/nt", "--quiet")
    lines = [line for line in loud.out.splitlines() if not line.startswith("# ")]
    assert quiet.out.splitlines() == lines != loud.out.splitlines()
    assert allrounder("show", "embedded/nt").out == loud.out, "the option holds for one call"
