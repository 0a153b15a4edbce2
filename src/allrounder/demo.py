"""The demonstration: baselines and the three Generalists on the embedded data, side by side."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any, final

import torch

from allrounder.errors import RunError
from allrounder.evaluation import evaluate
from allrounder.objectives import Natural
from allrounder.outcome import NATURAL, Outcome
from allrounder.recipe import Recipe
from allrounder.runs import load
from allrounder.trainer import train

RECIPES = {
    "embedded/nt": "NT",
    "embedded/at-linf": "AT Linf",
    "embedded/at-l2": "AT L2",
    "embedded/generalist-d-nt-linf": "Generalist-D NT+Linf",
    "embedded/generalist-d-linf-l2": "Generalist-D Linf+L2",
    "embedded/generalist-t": "Generalist-T",
}
ATTACK = "pgd-20"
HEADER = ("method", "natural", "Linf", "L2", "worst", "mean")
HOW_TO_READ = (
    "Percent of test images classified correctly, with 95% intervals: natural images, PGD-20 within each "
    "ball, worst = correct under both attacks at once (the true union), mean = average of the two (what "
    "Generalist++ calls Union). Higher is better everywhere; NT and AT show the trade-off that the "
    "Generalists try to soften."
)


@final
@dataclass(frozen=True)
class Note:
    """A job's message to the process that shows it."""

    name: str
    done: int = 0
    total: int = 1
    what: str = ""


@final
class Reporter:
    """Sends the progress of a training through a queue, a few times a second."""

    def __init__(self, name: str, send: Callable[[Note], None]):
        """Under this name."""
        self.name, self.send, self.total, self.sent = name, send, 1, 0.0

    def begin(self, total: int, done: int) -> None:
        """Set the length."""
        self.total = total
        self.send(Note(self.name, done, total, "training"))

    def step(self, t: int) -> None:
        """Move on."""
        if time.monotonic() - self.sent > 0.25 or t == self.total:
            self.sent = time.monotonic()
            self.send(Note(self.name, t, self.total, "training"))

    def say(self, text: str) -> None:
        """Remarks on a recipe belong to `allrounder show`."""


@final
class Works:
    """Adds up the steps of all runs for one overall bar."""

    def __init__(self, set_total: Callable[[float], None], set_done: Callable[[float], None]):
        """Every run counts its steps times its learners' work."""
        self.set_done = set_done
        self.size = {name: work(Recipe.load(name)) for name in RECIPES}
        self.share = dict.fromkeys(RECIPES, 0.0)
        set_total(round(sum(self.size.values())))

    def note(self, message: Note) -> None:
        """Training is counted; the short evaluation after it ends it."""
        if message.what == "training":
            self.share[message.name] = message.done / message.total
        self.set_done(round(sum(self.size[name] * share for name, share in self.share.items())))


def work(recipe: Recipe) -> float:
    """Roughly how long a step takes: an attack of ten steps costs eleven natural steps."""
    return sum(1.0 if isinstance(task.objective, Natural) else 11.0 for task in recipe.tasks)


def outcome_file(run: Path) -> Path:
    """Where a run's final evaluation is kept."""
    return run / "eval" / "outcome.safetensors"


def train_and_evaluate(name: str, out: Path, sets: Sequence[str], send: Callable[[Note], None]) -> None:
    """Train a shipped recipe and evaluate its selected global weights, unless that was done before."""
    recipe = Recipe.load(name, sets)
    run = train(recipe, out, resume=True, progress=Reporter(name, send))
    file = outcome_file(run.folder)
    if file.exists():
        send(Note(name, 1, 1, "was done before"))
        return

    def report(probe: str, done: int, total: int) -> None:
        send(Note(name, done, total, probe))

    outcome = evaluate(
        load(run.folder, "best"), recipe.data.load().test, recipe.probes, seed=0, progress=report
    )
    facts = {
        **outcome.facts,
        "weights": "best",
        "selected_on": recipe.validation.on,
        "recipe": recipe.fingerprint(),
    }
    file.parent.mkdir(exist_ok=True)
    Outcome(outcome.label, outcome.predicted, facts).save(file)


def run_all(
    folder: Path, show: Callable[[Note], None], *, workers: int = 2, sets: Sequence[str] = ()
) -> dict[str, Outcome]:
    """Run every recipe of the demonstration, several at once as processes of one thread each."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Manager().Queue()
    # The longest first, so that no long one is left alone at the end.
    order = sorted(RECIPES, key=lambda name: -work(Recipe.load(name)))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        jobs: dict[str, Future[None]] = {
            name: pool.submit(train_and_evaluate, name, run_folder(folder, name), list(sets), messages.put)
            for name in order
        }
        while not all(job.done() for job in jobs.values()):
            _drain(messages, show)
        _drain(messages, show)
    failed = {name: error for name, job in jobs.items() if (error := job.exception()) is not None}
    if failed:
        name, error = next(iter(failed.items()))
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, {name} with: {error}") from error
    return {name: Outcome.load(outcome_file(run_folder(folder, name))) for name in RECIPES}


def run_folder(folder: Path, name: str) -> Path:
    """Where a recipe of the demonstration is trained."""
    return folder / name.split("/")[-1]


COLUMNS = ((NATURAL, None), (ATTACK, "Linf"), (ATTACK, "L2"), (ATTACK, "worst"), (ATTACK, "mean"))


def rows(outcomes: Mapping[str, Outcome], cell: str = "{0:.1f}\n{1:.1f}-{2:.1f}") -> list[list[str]]:
    """One row for every run: the percent and its interval in every cell."""
    table: list[list[str]] = []
    for name, outcome in outcomes.items():
        found = [(outcome.accuracy(*column), *outcome.interval(*column)) for column in COLUMNS]
        table.append([RECIPES[name], *(cell.format(*(100 * share for share in shares)) for shares in found)])
    return table


def markdown(outcomes: Mapping[str, Outcome]) -> str:
    """The same table for a document."""
    cells = rows(outcomes, cell="{0:.1f} ({1:.1f}-{2:.1f})")
    lines = ["| " + " | ".join(row) + " |" for row in (HEADER, ["---"] * len(HEADER), *cells)]
    return "\n".join([*lines, "", *footnotes(outcomes)]) + "\n"


def footnotes(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What a reader must know of how the numbers came about."""
    rules = {str(outcome.facts["selected_on"]) for outcome in outcomes.values()}
    chosen = "validation images cut from the training set" if rules == {"validation"} else "the TEST set"
    threats = ", ".join(probe.partition("@")[2] for probe in next(iter(outcomes.values())).probes(ATTACK))
    weights = f"the global weights of the best point in training, selected on {chosen}"
    return [f"Threats: {threats}. Weights: {weights}."]


def _one_thread() -> None:
    torch.set_num_threads(1)


def _drain(messages: Any, show: Callable[[Note], None]) -> None:
    try:
        show(messages.get(timeout=0.2))
        while True:
            show(messages.get_nowait())
    except Empty:
        pass
