"""The work of `allrounder figure`: read the results, build the charts and save them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import typer

from allrounder.cli.echo import echo, echo_note
from allrounder.cli.index import check_choice
from allrounder.errors import InputError, RunError
from allrounder.experiments.collect import read_results
from allrounder.report import FIGURES, Results, build_charts, row_colors, save_figure
from allrounder.report.draw_matplotlib import check_ending


def run_figure(
    name: str, paths: Sequence[str], out: Path, charts: Sequence[str], rows: Sequence[str]
) -> None:
    """Save a figure; print the captions of its charts, what is wrong with its runs, and its path."""
    try:
        check_ending(out)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    for library in ("fontTools", "matplotlib"):  # the command line prints messages of level INFO
        logging.getLogger(library).setLevel(logging.WARNING)
    results = read_results(paths)
    shown = _select_rows(results, rows) if rows else results
    for entry in shown.entries:
        for problem in entry.problems:
            echo_note(f"{entry.name}: {problem}")
    built = build_charts(name, shown)
    if not built:
        raise RunError(f"{name}: {FIGURES[name].missing}")
    for chart in charts:
        check_choice(chart, [drawn.name for drawn in built], "--chart")
    drawn = [chart for chart in built if not charts or chart.name in charts]
    save_figure(drawn, out, row_colors(entry.name for entry in results.entries))
    for chart in drawn:
        echo_note(f"{chart.name}: {chart.title}. {chart.about}")
    echo(str(out))


def _select_rows(results: Results, parts: Sequence[str]) -> Results:
    selected = results.select_rows(parts)
    if not selected.entries:
        names = ", ".join(entry.name for entry in results.entries)
        got = " or ".join(f'"{part}"' for part in parts)
        raise typer.BadParameter(f"no row contains {got}; there are: {names}", param_hint="--rows")
    return selected
