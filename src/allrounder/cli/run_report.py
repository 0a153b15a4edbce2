"""The work of `allrounder report`: read the results, render the page and write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allrounder.cli.echo import echo, echo_note
from allrounder.errors import AllrounderError
from allrounder.experiments.collect import read_results
from allrounder.experiments.gallery import gallery_of_runs
from allrounder.report.entry import Results
from allrounder.system.files import make_folder


def run_report(paths: Sequence[str], out: Path, title: str | None, gallery: bool) -> None:
    """Write a page about runs, studies and evaluations, and print its path."""
    try:
        from allrounder.report.page.page import write_page
    except ModuleNotFoundError as error:
        advice = 'install it with: pip install "allrounder[report]"'
        raise AllrounderError(f"report: needs the library {error.name}, which is missing; {advice}") from None
    results = read_results(paths)
    make_folder(out.parent)
    images = gallery_of_runs(results, explain=echo_note) if gallery else None
    write_page(results, out, title=title or default_title(results), gallery=images)
    problems = sum(len(entry.problems) for entry in results.entries)
    if problems:
        echo_note(f"{problems} problems with these runs: see the warnings of the page")
    echo(str(out))


def default_title(results: Results) -> str:
    """Return the names of a few studies, or the name of the only row, else what the page is."""
    names = list(results.studies) or [entry.name for entry in results.entries]
    return ", ".join(names) if len(names) <= 3 else "Robustness report"
