"""The commands about one recipe: train, plan and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from allrounder.cli.echo import echo
from allrounder.cli.index import complete_recipe

RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help="A recipe file, or the name of a shipped recipe.",
        autocompletion=complete_recipe,
    ),
]
OVERRIDE_HELP = "Override a value, such as task.linf.objective.attack.steps=20."
Overrides = Annotated[list[str] | None, Option("--set", metavar="A.B=C", help=OVERRIDE_HELP)]
Folder = Annotated[Path | None, Option("--out", help="The run folder. Default: runs/NAME-FINGERPRINT.")]
Resume = Annotated[bool, Option("--resume", help="Continue an interrupted run.")]
Threads = Annotated[
    int | None,
    Option(min=1, help="CPU threads. Changes results in the last bits, so it is recorded in the run."),
]
WORKERS_HELP = "Local processes to spread the learners over (like torchrun --nproc-per-node)."
Workers = Annotated[int, Option(min=1, help=WORKERS_HELP)]
Steps = Annotated[int, Option(min=1, help="Steps to measure, after one warm-up step.")]


def train(
    recipe: RecipeName,
    folder: Folder = None,
    sets: Overrides = None,
    resume: Resume = False,
    threads: Threads = None,
    workers: Workers = 1,
) -> None:
    """Train a recipe, or continue an interrupted run.

    SIGINT and SIGTERM save a checkpoint after the current step and exit with code 75; continue with --resume.
    Start several machines with torchrun. With at most one process per learner and equal --threads, the
    weights are bit-for-bit those of a serial run.
    """
    from allrounder.cli.run_train import run_train

    if code := run_train(recipe, tuple(sets or ()), folder, resume, threads, workers):
        raise Exit(code)


def plan(recipe: RecipeName, sets: Overrides = None, steps: Steps = 3) -> None:
    """Measure a few steps of a recipe and predict its time, memory, disk space and communication."""
    from allrounder.cli.run_train import run_plan

    run_plan(recipe, tuple(sets or ()), steps)


def show(recipe: RecipeName, sets: Overrides = None) -> None:
    """Print a resolved recipe as TOML, with its files and warnings about settings that may surprise."""
    from allrounder.config.time import Clock
    from allrounder.data.batches import Batches
    from allrounder.data.synthetic import synthetic_data
    from allrounder.errors import RecipeError
    from allrounder.recipe.inherit import Chain
    from allrounder.recipe.lint import warnings_for
    from allrounder.recipe.recipe import Recipe
    from allrounder.rng import Rng
    from allrounder.training.data import load_data, train_val_split

    resolved = Recipe.load(recipe, sets or ())
    echo(f"# {' '.join(resolved.name.split())}, fingerprint {resolved.fingerprint()}")
    echo(f"# from: {', '.join(layer.label for layer in Chain.read(recipe).layers)}")
    if resolved.pipeline is not None:
        for name, stage in resolved.stage_recipes().items():
            echo(f"# stage {name}: {stage.epochs} epochs, {stage.passes()} forward/backward passes per step")
    try:
        data = load_data(resolved)
    except RecipeError as error:
        data = synthetic_data(resolved.data)
        missing = "number of steps unknown, exchanges not checked" if data is None else "sizes as published"
        echo(f"# {missing}: {' '.join(str(error).split())}")
    if data is not None:
        split, _ = train_val_split(resolved, data)
        steps = Batches(split, resolved.batch_size, Rng(resolved.seed)).steps
        clock = Clock(resolved.epochs, steps, resolved.pace)
        echo(f"# {len(split)} training images, {steps} steps per epoch, {clock.total_steps} steps in total")
        for warning in warnings_for(resolved, clock):
            echo(f"# note: {warning}")
    echo(resolved.dumps().rstrip("\n"))
