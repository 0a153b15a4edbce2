"""The commands about several trainings: sweep, compare and table."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from allrounder.cli.display import Bars, grid, out, say
from allrounder.errors import Interrupted, RunError
from allrounder.experiments.launchers import SCRIPT, Launcher, run_on_ray, slurm_script, submit
from allrounder.experiments.runner import STUDY, Overall, begin, gather, jobs_of
from allrounder.experiments.study import Study, Trial, shipped_studies, slug
from allrounder.report.results import Results, render, sheet
from allrounder.system.files import write_text
from allrounder.system.processes import Job, Note, run_jobs

STYLES = ("markdown", "latex", "csv", "json")
SHOWN = 12
"""Trainings that have a bar each; of more, only those under way are told."""


def _studies(incomplete: str) -> list[str]:
    return [name for name in shipped_studies() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study file, or a shipped one.", autocompletion=_studies)
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Where run folders go; by default runs/studies/NAME.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Trainings at once, each of one thread; by default one a core.")
]
Where = Annotated[str, typer.Option(help="local, slurm or ray.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Only = Annotated[int | None, typer.Option(min=0, help="One training alone, by its number from 0.")]
Style = Annotated[str, typer.Option(help=f"One of {', '.join(STYLES)}.")]


def sweep(
    study: Name,
    folder: Folder = None,
    workers: Workers = None,
    launcher: Where = "local",
    dry: Dry = False,
    only: Only = None,
) -> None:
    """Train and evaluate everything a study names, several at once, and print its table.

    What is finished is skipped, what was interrupted goes on, and a failure stops none of the others.
    """
    value = Study.load(study)
    carry_on(value, folder or default_folder(value), workers, launcher, dry, only)


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="Recipes, or one shipped study.")],
    seeds: Annotated[
        int, typer.Option(min=1, help="Trainings of each recipe, with the seeds from 0 on.")
    ] = 1,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value in all.")
    ] = None,
    folder: Folder = None,
    workers: Workers = None,
    launcher: Where = "local",
    dry: Dry = False,
) -> None:
    """Compare recipes, each with several seeds, in one table."""
    if len(names) == 1 and names[0] in shipped_studies():
        value = Study.load(names[0])
        value = replace(
            value, sets=(*value.sets, *(sets or ())), seeds=tuple(range(max(seeds, len(value.seeds))))
        )
    else:
        value = Study.of(names, seeds=range(seeds), sets=sets or ())
    carry_on(value, folder or default_folder(value), workers, launcher, dry, None)


def table(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY_OR_FOLDER", help="A study, or the folder it ran in.", autocompletion=_studies
        ),
    ],
    folder: Folder = None,
    style: Style = "markdown",
) -> None:
    """Print the table of a study from its run folders; what is missing is said."""
    if style not in STYLES:
        raise typer.BadParameter(f"{style}: expected one of {', '.join(STYLES)}", param_hint="--style")
    there = Path(study)
    if (there / STUDY).is_file():
        folder, value = there, Study.loads((there / STUDY).read_text(encoding="utf-8"), str(there / STUDY))
    else:
        value = Study.load(study)
        folder = folder or default_folder(value)
        if (folder / STUDY).is_file():
            seeds = Study.loads((folder / STUDY).read_text(encoding="utf-8"), str(folder / STUDY)).seeds
            value = replace(value, seeds=seeds)
    results = gather(value, folder)
    if not results.outcomes:
        raise RunError(
            f"{folder}: nothing of {value.name} is finished there; run it with: allrounder sweep {study}"
        )
    say(render(results, style).rstrip())


def default_folder(study: Study) -> Path:
    """Where a study goes unless another place is named."""
    return Path("runs") / "studies" / slug(study.name)


def carry_on(
    study: Study, folder: Path, workers: int | None, launcher: str, dry: bool, only: int | None
) -> None:
    """Run a study, or what is left of it, and show its table."""
    if launcher not in get_args(Launcher):
        raise typer.BadParameter(
            f"{launcher}: expected one of {', '.join(get_args(Launcher))}", param_hint="--launcher"
        )
    trials = study.trials()
    if only is not None and only >= len(trials):
        raise typer.BadParameter(
            f"{only}: the study has {len(trials)} trainings, from 0 on", param_hint="--only"
        )
    if dry:
        _say_plan(study, trials, folder, launcher)
        return
    held = begin(study, folder)
    chosen = trials if only is None else [trials[only]]
    jobs = jobs_of(chosen, folder, study.images)
    say(f"{study.name}: {len(chosen)} trainings into {folder}/")
    if launcher == "slurm":
        write_text(folder / SCRIPT, slurm_script(folder, len(held.trials())))
        say(submit(folder / SCRIPT))
        return
    try:
        watch(chosen, jobs, cast(Launcher, launcher), workers or len(os.sched_getaffinity(0)))
    except (RunError, Interrupted):
        with suppress(RunError):  # why it stopped matters more
            _finish(study, folder, only)
        raise
    _finish(study, folder, only)


def _finish(study: Study, folder: Path, only: int | None) -> None:
    if only is not None:  # the others may be under way, each as a task of its own
        return
    results = gather(study, folder)
    if results.outcomes:
        show(results, folder)


def watch(trials: list[Trial], jobs: dict[str, Job], launcher: Launcher, workers: int) -> None:
    """Run jobs under bars: one for each of a few, and one for all."""
    overall, few = Overall(trials), len(trials) <= SHOWN
    with Bars(out, list(jobs) if few else [], overall=f"all {len(trials)}, percent") as bars:

        def tell(note: Note) -> None:
            if few:
                bars.show(note.name, note.done, note.total, note.what)
            elif note.done == note.total and note.what != "training" and note.name not in told:
                told.add(note.name)
                bars.say(f"{note.name}: {note.what} ({len(told)} of {len(trials)})")
            bars.show_overall(overall.percent(note))

        told: set[str] = set()
        if launcher == "ray":
            run_on_ray(jobs, tell)
        else:
            run_jobs(jobs, workers, tell)


def show(results: Results, folder: Path) -> None:
    """Print a table and keep it beside the runs."""
    (folder / "table.md").write_text(render(results), encoding="utf-8")
    out.print(grid(*sheet(results)))
    for line in results.notes():
        say(line)
    say(f"Run folders: {folder}/ (this table: {folder / 'table.md'})")


def _say_plan(study: Study, trials: list[Trial], folder: Path, launcher: str) -> None:
    say(f"{study.name}: {len(trials)} trainings into {folder}/")
    rows = [[str(k), t.label, str(t.seed), t.recipe.fingerprint(), str(t.cost)] for k, t in enumerate(trials)]
    out.print(grid(("number", "row", "seed", "fingerprint", "cost"), rows))
    if launcher == "slurm":
        say(slurm_script(folder, len(trials)))
