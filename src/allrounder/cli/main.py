"""The command line: verbs with one purpose each; no flag ever belongs to a method."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from allrounder.attacks import ATTACKS, SEARCHES
from allrounder.cli.data import app as data_app
from allrounder.cli.display import Bars, Watch, err, listing, out, say
from allrounder.cli.evaluate import doctor_, eval_
from allrounder.cli.plan import show_plan
from allrounder.cli.study import carry_on, compare, sweep, table
from allrounder.config.decode import json_schema
from allrounder.config.schedules import DECAYS, SCHEDULES
from allrounder.config.time import Clock
from allrounder.data import DATASETS
from allrounder.data.augment import AUGMENTS
from allrounder.data.base import Batches
from allrounder.distributed import default_threads, launch
from allrounder.errors import DataError, Diverged, Interrupted, RecipeError, RunError, ThreatError, WorldError
from allrounder.evaluation.preflight import Unfit
from allrounder.experiments.study import Study, shipped_studies
from allrounder.models import MODELS
from allrounder.objectives import OBJECTIVES, facts
from allrounder.optim import UPDATES
from allrounder.optim.optimizers import OPTIMIZERS
from allrounder.recipe.init import INITS
from allrounder.recipe.lint import advice
from allrounder.recipe.pipeline import PROGRAMS
from allrounder.recipe.recipe import Recipe, shipped
from allrounder.rng import Draws
from allrounder.training.model_selection import split_off
from allrounder.training.run import Run, environment
from allrounder.training.trainer import train as train_recipe

FAILED, USAGE, RESUMABLE = 1, 2, 75
TABLES: dict[str, dict[str, type[Any]]] = {
    "objectives": dict(OBJECTIVES),
    "attacks": dict(ATTACKS),
    "searches": dict(SEARCHES),
    "models": dict(MODELS),
    "datasets": dict(DATASETS),
    "optimizers": dict(OPTIMIZERS),
    "schedules": {**SCHEDULES, **DECAYS},
    "augmentations": dict(AUGMENTS),
    "updates": dict(UPDATES),
    "inits": dict(INITS),
    "programs": dict(PROGRAMS),
}

app = typer.Typer(
    help="Image classifiers, accurate on natural images and robust under several norms at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _recipe_names(incomplete: str) -> list[str]:
    return [name for name in shipped() if name.startswith(incomplete)]


def _lists(incomplete: str) -> list[str]:
    return [name for name in ("recipes", "studies", *TABLES) if name.startswith(incomplete)]


RecipeArgument = Annotated[
    str, typer.Argument(help="A recipe file, or the name of a shipped one.", autocompletion=_recipe_names)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Override a value, such as task.linf.objective.attack.steps=20."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of this process; the number changes bits and is recorded.")
]


def _print_version(asked: bool) -> bool:
    if asked:
        facts = environment(torch.device("cpu"))
        out.print(
            f"allrounder {facts['allrounder']} (torch {facts['torch']}, Python {facts['python']})",
            highlight=False,
        )
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


@app.command()
def train(
    recipe: RecipeArgument,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run folder; by default runs/NAME-FINGERPRINT.")
    ] = None,
    sets: Sets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    threads: Threads = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes of this machine that share the learners, as of torchrun.")
    ] = 1,
) -> None:
    """Train a recipe, or go on with an interrupted run.

    SIGINT and SIGTERM save at the current step and exit with code 75: call again with --resume. Several
    machines are started with torchrun; learners of one process each come to the weights of a serial run, to
    the bit, at equal --threads.
    """
    value = Recipe.load(recipe, sets or ())
    threads = threads or default_threads()
    name = value.name.replace("/", "-")
    folder = out_dir or Path("runs") / f"{name}-{value.fingerprint()}"
    if workers > 1:
        more = [word for text in sets or () for word in ("--set", text)] + ["--resume"] * resume
        words = ["train", recipe, "--out", str(folder), "--threads", str(threads), *more]
        raise typer.Exit(launch(words, workers))
    torch.set_num_threads(threads)
    if os.environ.get("RANK", "0") != "0":  # rank 0 speaks for all
        train_recipe(value, folder, resume=resume)
        return
    with Bars(out, [name]) as bars:
        run = train_recipe(value, folder, resume=resume, progress=Watch(bars, name))
    _print_run(run)


@app.command("list")
def list_(
    what: Annotated[str | None, typer.Argument(help="One of the lists alone.", autocompletion=_lists)] = None,
) -> None:
    """List recipes, objectives, attacks, models, datasets and more, each with one line."""
    if what is not None and what not in ("recipes", "studies", *TABLES):
        raise typer.BadParameter(f"{what}: expected one of {', '.join(('recipes', 'studies', *TABLES))}")
    if what in (None, "recipes"):
        out.print(listing("recipes", {name: Recipe.load(name).about for name in shipped()}))
    if what in (None, "studies"):
        out.print(listing("studies", {name: Study.load(name).about for name in shipped_studies()}))
    for title, entries in TABLES.items():
        if what in (None, title):
            lines = {name: _first_sentence(cls) for name, cls in entries.items()}
            if entries is TABLES["objectives"]:
                lines = {name: f"{line} ({facts(name)})" for name, line in lines.items()}
            out.print(listing(title, lines))


@app.command()
def show(recipe: RecipeArgument, sets: Sets = None) -> None:
    """Print the resolved recipe as TOML, with remarks on what it does that may surprise."""
    value = Recipe.load(recipe, sets or ())
    print(f"# {' '.join(value.name.split())}, fingerprint {value.fingerprint()}")
    for name, one in value.trainings().items() if value.program is not None else ():
        print(f"# training {name}: {one.epochs} epochs, {one.passes()} passes a step")
    try:
        data = value.read_data()
    except RecipeError as error:
        print(f"# its exchanges are not checked: {' '.join(str(error).split())}")
    else:
        split, _ = split_off(value, data)
        clock = Clock(value.epochs, Batches(split, value.batch, Draws(value.seed)).steps, value.pace)
        print(f"# {len(split)} training images, {clock.steps} steps an epoch, {clock.total} steps")
        for remark in advice(value, clock):
            print(f"# note: {remark}")
    print(value.dump(), end="")


@app.command()
def plan(
    recipe: RecipeArgument,
    sets: Sets = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, after one that warms up.")] = 3,
) -> None:
    """Measure a few steps of a recipe: time, memory, disk and wire that it will take here."""
    show_plan(recipe, sets or (), steps)


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors that complete and check TOML."""
    print(json.dumps(json_schema(Recipe), indent=1))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the run folders go.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Runs at once, each a process of one thread.")] = 2,
    sets: Sets = None,
) -> None:
    """Train NT, AT and the three Generalists on the embedded data, and compare them in one table."""
    study = Study.load("embedded/demo")
    carry_on(replace(study, sets=tuple(sets or ())), folder, workers, "local", dry=False, only=None)


app.command("eval")(eval_)
app.command("doctor")(doctor_)
app.command()(sweep)
app.command()(compare)
app.command()(table)
app.add_typer(data_app, name="data")


def _first_sentence(cls: type[Any]) -> str:
    paragraph = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def _print_run(run: Run) -> None:
    events = [event for event in run.metrics() if event["event"] == "validation"]
    best = max(events, key=lambda event: event["score"], default=None)
    if best is not None:
        shares = {"natural": best["natural"], **best["robust"]}
        accuracies = ", ".join(f"{what} {100 * share:.1f}%" for what, share in shares.items())
        where = "the TEST set" if best["selected_on"] == "test" else "validation images"
        say(f"best global weights: epoch {best['epoch']}, {accuracies} (selected on {where})")
    say(f"run folder: {run.folder}")


def main() -> None:
    """The entry point: errors of the user are one message, and the exit code says what can be done."""
    try:
        app(prog_name="allrounder")
    except Interrupted as stop:
        say(str(stop), err)
        sys.exit(RESUMABLE)
    except RecipeError as error:
        say(str(error), err)
        sys.exit(USAGE)
    except (RunError, ThreatError, WorldError, DataError, Diverged, Unfit) as error:
        say(f"error: {error}", err)
        sys.exit(FAILED)
