"""The commands about one recipe: train, plan and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from allrounder.cli.index import complete_recipe
from allrounder.config.interrupts import delay_interrupts

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
TensorBoard = Annotated[
    bool,
    Option("--tensorboard", help="Write events for TensorBoard in the run folder: --set tensorboard=true."),
]
STEPS_HELP = "Steps to measure, after one warm-up step. Default: 3, or a single one if it takes above 10 s."
Steps = Annotated[int | None, Option(min=1, help=STEPS_HELP)]


def train(
    recipe: RecipeName,
    folder: Folder = None,
    sets: Overrides = None,
    resume: Resume = False,
    threads: Threads = None,
    workers: Workers = 1,
    tensorboard: TensorBoard = False,
) -> None:
    """Train a recipe, or continue an interrupted run.

    SIGINT and SIGTERM save a checkpoint after the current step and exit with code 75; continue with --resume.
    Start several machines with torchrun. With at most one process per learner and equal --threads, the
    weights are bit-for-bit those of a serial run.
    """
    with delay_interrupts():
        from allrounder.cli.run_train import run_train

    overrides = (*(sets or ()), *(["tensorboard=true"] if tensorboard else ()))
    if code := run_train(recipe, overrides, folder, resume, threads, workers):
        raise Exit(code)


def plan(recipe: RecipeName, sets: Overrides = None, steps: Steps = None) -> None:
    """Predict the time, memory, disk space and communication of a recipe on this machine.

    Prints an estimate after a few seconds, from the number of passes, then measures real steps. Ctrl-C prints
    what is known.
    """
    with delay_interrupts():
        from allrounder.cli.run_train import run_plan

    if code := run_plan(recipe, tuple(sets or ()), steps):
        raise Exit(code)


def show(recipe: RecipeName, sets: Overrides = None) -> None:
    """Print a resolved recipe as TOML, with its files and warnings about settings that may surprise."""
    with delay_interrupts():
        from allrounder.cli.run_train import run_show

    run_show(recipe, tuple(sets or ()))
