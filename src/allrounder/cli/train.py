"""The command that trains a recipe: train. Its options are shared with show and plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allrounder.cli.index import complete_recipe

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file, or the name of a shipped recipe.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Override a value, such as task.linf.objective.attack.steps=20."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads. Changes results in the last bits, so it is recorded in the run."),
]


def train(
    recipe: RecipeName,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run folder. Default: runs/NAME-FINGERPRINT.")
    ] = None,
    sets: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    threads: Threads = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, help="Local processes to spread the learners over (like torchrun --nproc-per-node)."
        ),
    ] = 1,
) -> None:
    """Train a recipe, or continue an interrupted run.

    SIGINT and SIGTERM save a checkpoint after the current step and exit with code 75; continue with --resume.
    Start several machines with torchrun. With at most one process per learner and equal --threads, the
    weights are bit-for-bit those of a serial run.
    """
    from allrounder.cli.training import run_training

    code = run_training(recipe, tuple(sets or ()), out_dir, resume, threads, workers)
    if code:
        raise typer.Exit(code)
