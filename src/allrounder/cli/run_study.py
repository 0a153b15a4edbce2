"""The work of `allrounder sweep`, `compare` and `demo`: run the trainings of a study and print its table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import typer

from allrounder.cli.display import ProgressBars, print_columns, print_numbers
from allrounder.cli.echo import echo, echo_note
from allrounder.cli.index import check_choice
from allrounder.errors import Interrupted, MissingLibraryError, RunError
from allrounder.experiments.collect import read_results
from allrounder.experiments.launchers import SLURM_SCRIPT, Launcher, run_on_ray, slurm_script, submit_to_slurm
from allrounder.experiments.manifest import collect_results, default_folder
from allrounder.experiments.runner import TotalProgress, make_jobs, make_manifest, open_study
from allrounder.experiments.study import Study, Trial
from allrounder.report.study import render_study
from allrounder.report.tables import format_rows
from allrounder.system.files import write_text
from allrounder.system.processes import Job, run_jobs
from allrounder.system.progress import ProgressEvent

MAX_BARS = 12
"""Trainings that get a bar each; of more, only finished ones are printed."""


def run_study(
    study: Study, out: Path | None, workers: int | None, launcher: str, dry: bool, only: int | None
) -> None:
    """Run the unfinished trainings of a study and print its table."""
    folder = out or default_folder(study.name)
    check_choice(launcher, get_args(Launcher), "--launcher")
    trials = study.trials()
    if only is not None and only >= len(trials):
        problem = f"{only}: the study has {len(trials)} trainings, numbered from 0"
        raise typer.BadParameter(problem, param_hint="--only")
    if dry:
        _print_dry_run(study, trials, folder, launcher)
        return
    opened = open_study(study, folder)
    selected = trials if only is None else [trials[only]]
    jobs = make_jobs(selected, folder, study.images, study.ood, study.held_out)
    echo_note(f"{study.name}: {len(selected)} trainings into {folder}/")
    if launcher == "slurm":
        write_text(folder / SLURM_SCRIPT, slurm_script(folder, len(opened.trials())))
        echo(submit_to_slurm(folder / SLURM_SCRIPT))
        return
    try:
        _run_with_bars(selected, jobs, cast(Launcher, launcher), workers or len(os.sched_getaffinity(0)))
    except (RunError, Interrupted):
        with suppress(RunError):  # the first error is the cause
            _print_table(study, folder, only)
        raise
    _print_table(study, folder, only)


def run_demo(folder: Path, workers: int, sets: Sequence[str]) -> None:
    """Run the demonstration, then write its report and the figure of the trade-off."""
    study = replace(Study.load("embedded/demo"), sets=tuple(sets))
    run_study(study, folder, workers, "local", dry=False, only=None)
    write_demo_report(folder)


def write_demo_report(folder: Path) -> None:
    """Write the report of the demonstration; without its libraries, print what to install."""
    try:
        from allrounder.cli.run_report import run_report  # needs optional libraries
        from allrounder.report import build_charts, save_figure

        save_figure(build_charts("tradeoff", read_results([folder])), folder / "tradeoff.svg")
        echo_note(f"The trade-off: {folder / 'tradeoff.svg'}. The report, a page for a browser:")
        run_report([str(folder)], folder / "report.html", "The demonstration", has_gallery=True)
    except MissingLibraryError as error:
        echo_note(f"no report: {error}")


def _print_table(study: Study, folder: Path, only: int | None) -> None:
    """Print the table of a study, and save it beside the runs."""
    if only is not None:  # the other trainings may still run, as tasks of a cluster
        return
    results = collect_results(make_manifest(study), folder)
    if results.outcomes:
        write_text(folder / "table.md", render_study(results))
        table = results.to_table("text")
        print_numbers(table.header, format_rows(table, "text"))
        for line in table.notes:
            echo(line)
        echo_note(f"Run folders: {folder}/ (this table: {folder / 'table.md'})")


def _run_with_bars(trials: Sequence[Trial], jobs: dict[str, Job], launcher: Launcher, workers: int) -> None:
    """Run jobs and show their progress: a bar per training if there are few, and one for all."""
    total = TotalProgress(trials)
    has_bars = len(trials) <= MAX_BARS
    finished: set[str] = set()
    with ProgressBars(list(jobs) if has_bars else [], overall=f"all {len(trials)}, percent") as bars:

        def update(event: ProgressEvent) -> None:
            if has_bars:
                bars.update(event.name, event.done, event.total, event.stage)
            elif event.done == event.total and event.stage != "training" and event.name not in finished:
                finished.add(event.name)
                bars.log(f"{event.name}: {event.stage} ({len(finished)} of {len(trials)})")
            bars.update_overall(total.percent_done(event))

        if launcher == "ray":
            run_on_ray(jobs, update)
        else:
            run_jobs(jobs, workers, update)


def _print_dry_run(study: Study, trials: Sequence[Trial], folder: Path, launcher: str) -> None:
    echo(f"{study.name}: {len(trials)} trainings into {folder}/")
    rows = [
        [str(number), trial.label, str(trial.seed), trial.recipe.fingerprint(), str(trial.cost)]
        for number, trial in enumerate(trials)
    ]
    print_columns(("number", "row", "seed", "fingerprint", "cost"), rows, numbers=(0, 2, 4))
    if launcher == "slurm":
        echo(slurm_script(folder, len(trials)))
