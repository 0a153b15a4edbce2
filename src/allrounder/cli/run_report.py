"""The work of `allrounder report`: read the results, render the page and write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allrounder.cli.echo import echo, echo_note
from allrounder.config.interrupts import delay_interrupts
from allrounder.experiments.collect import read_results
from allrounder.report import Results, write_page
from allrounder.report.gallery import Gallery
from allrounder.system.files import make_folder

MAX_NAMES = 3
"""Studies or rows that a title names."""


def run_report(paths: Sequence[str], out: Path, title: str | None, has_gallery: bool) -> None:
    """Write a page about runs, studies and evaluations, and print its path."""
    results = read_results(paths)
    gallery = _make_gallery(results) if has_gallery else None
    make_folder(out.parent)
    write_page(results, out, title=title or _name_results(results), gallery=gallery)
    if problems := sum(len(entry.problems) for entry in results.entries):
        count = "1 warning" if problems == 1 else f"{problems} warnings"
        echo_note(f"The page has {count} about damaged, missing or unfinished files.")
    echo(str(out))


def _make_gallery(results: Results) -> Gallery | None:
    with delay_interrupts():
        from allrounder.experiments.gallery import gallery_of_runs  # loads torch

    return gallery_of_runs(results, explain=echo_note)


def _name_results(results: Results) -> str:
    """The names of a few studies, or of a few rows; empty if there are more."""
    names = list(results.studies) or [entry.name for entry in results.entries]
    return ", ".join(names) if len(names) <= MAX_NAMES else ""
