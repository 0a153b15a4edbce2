"""The commands about several trainings: sweep, compare, table, publish and demo.

`table` and `publish` read only the files of a study, without torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from allrounder.cli.echo import echo, echo_note
from allrounder.cli.index import (
    NOTE_LEVELS,
    STUDY_STYLES,
    check_choice,
    complete_recipe,
    complete_study,
    read_index,
)
from allrounder.cli.train import Overrides
from allrounder.config.interrupts import delay_interrupts
from allrounder.errors import InputError, RunError

StudyName = Annotated[
    str,
    Argument(
        metavar="STUDY", help="A study file, or the name of a shipped study.", autocompletion=complete_study
    ),
]
StudyOrFolder = Annotated[
    str,
    Argument(
        metavar="STUDY_OR_FOLDER", help="A study, or the folder it ran in.", autocompletion=complete_study
    ),
]
Folder = Annotated[Path | None, Option("--out", help="The folder of the study. Default: runs/studies/NAME.")]
Workers = Annotated[
    int | None, Option(min=1, help="Trainings at once, each with one thread. Default: one per core.")
]
LauncherName = Annotated[str, Option(help="local, slurm or ray.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the trainings, and run none.")]
Only = Annotated[int | None, Option(min=0, help="Run one training only, by its number from 0.")]
Style = Annotated[str, Option(help=f"One of {', '.join(STUDY_STYLES)}.")]


def sweep(
    study: StudyName,
    folder: Folder = None,
    workers: Workers = None,
    launcher: LauncherName = "local",
    dry: DryRun = False,
    only: Only = None,
) -> None:
    """Train and evaluate everything in a study, several trainings at once, and print its table.

    Finished trainings are skipped and interrupted ones resume. A failed one does not stop the others.
    """
    with delay_interrupts():
        from allrounder.cli.run_study import run_study
        from allrounder.experiments.study import Study

    run_study(Study.load(study), folder, workers, launcher, dry, only)


def compare(
    names: Annotated[
        list[str],
        Argument(metavar="RECIPE", help="Recipes, or one shipped study.", autocompletion=complete_recipe),
    ],
    seeds: Annotated[int, Option(min=1, help="Trainings per recipe, with seeds 0, 1, ...")] = 1,
    sets: Overrides = None,
    n: Annotated[
        int | None, Option("--n", min=1, help="Test images of every evaluation. Default: all.")
    ] = None,
    folder: Folder = None,
    workers: Workers = None,
    launcher: LauncherName = "local",
    dry: DryRun = False,
) -> None:
    """Compare recipes in one table, each with one or more seeds."""
    with delay_interrupts():
        from allrounder.cli.run_study import run_study
        from allrounder.experiments.study import Study

    if len(names) == 1 and names[0] in read_index()["lists"]["studies"]:
        study = Study.load(names[0])
        num_seeds = max(seeds, len(study.seeds))
        study = replace(study, sets=(*study.sets, *(sets or ())), seeds=tuple(range(num_seeds)))
    else:
        study = Study.from_recipes(names, seeds=range(seeds), sets=sets or ())
    study = study if n is None else replace(study, images=n)
    run_study(study, folder, workers, launcher, dry, None)


def table(
    study: StudyOrFolder,
    folder: Folder = None,
    style: Style = "markdown",
    columns: Annotated[
        str, Option(help='Show these columns only: "natural, aa worst".', metavar="TITLES")
    ] = "",
    rows: Annotated[str, Option(help='Show these rows only: "NT; AT".', metavar="LABELS")] = "",
    notes: Annotated[str, Option(help=f"One of {', '.join(NOTE_LEVELS)}.")] = "all",
) -> None:
    """Print the table of a study from its run folders, and what is missing from it."""
    with delay_interrupts():
        from allrounder.experiments.manifest import STUDY_FILE, Manifest, collect_results, find_study_folder
        from allrounder.report.excerpt import Excerpt, render_excerpt

    check_choice(style, STUDY_STYLES, "--style")
    check_choice(notes, NOTE_LEVELS, "--notes")
    folder = find_study_folder(study, folder, read_index()["lists"]["studies"])
    manifest = Manifest.load(folder)
    results = collect_results(manifest, folder)
    if not results.outcomes:
        resume = f"allrounder sweep {folder / STUDY_FILE} --out {folder}"
        raise RunError(
            f"{folder}: no training of {manifest.name} is finished there; continue it with: {resume}"
        )
    try:
        text = render_excerpt(results, Excerpt.parse(columns, rows, notes), style)
    except InputError as error:
        raise BadParameter(str(error)) from None
    echo(text.rstrip())


def publish(
    study: StudyOrFolder,
    to: Annotated[Path, Option("--to", help="The folder to write, such as results/NAME.", metavar="FOLDER")],
    folder: Folder = None,
) -> None:
    """Copy what the table and the report of a study need, without weights, into a folder to keep.

    Publish again after more trainings have finished. `table`, `report` and `figure` read the folder.
    """
    with delay_interrupts():
        from allrounder.experiments.manifest import find_study_folder
        from allrounder.experiments.publish import publish_study

    source = find_study_folder(study, folder, read_index()["lists"]["studies"])
    publication = publish_study(source, to)
    if publication.unfinished:
        echo_note(f"Left out, because they are not finished: {', '.join(publication.unfinished)}.")
    trainings = "1 training" if publication.trainings == 1 else f"{publication.trainings} trainings"
    if publication.kept:
        echo_note(f"Kept {publication.kept} published before, which did not run in {source}.")
    echo(f"{to}: {trainings}, {publication.files} files, {publication.size / 1000:.0f} kB")


def demo(
    folder: Annotated[Path, Option("--out", help="The folder of the runs.")] = Path("runs/demo"),
    workers: Annotated[int, Option(min=1, help="Trainings at once, each with one thread.")] = 2,
    sets: Overrides = None,
) -> None:
    """Train seven methods on the embedded data, judge them by AutoAttack, and write a report.

    The report is a page for a browser; without the extra `report`, there is only the table.
    """
    with delay_interrupts():
        from allrounder.cli.run_study import run_demo

    run_demo(folder, workers, tuple(sets or ()))
