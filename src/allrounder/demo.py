"""The demonstration: baselines and the three Generalists on the embedded data, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from allrounder.evaluation import evaluate
from allrounder.objectives import Natural
from allrounder.outcome import NATURAL, Outcome
from allrounder.pool import Note, Send, run_jobs
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
class Reporter:
    """Sends the progress of a training through a queue, a few times a second."""

    def __init__(self, name: str, send: Send):
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
class Overall:
    """Adds up the work of all runs for one bar."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        """Nothing is done yet."""
        self.size = {name: work(recipe) for name, recipe in recipes.items()}
        self.share = dict.fromkeys(RECIPES, 0.0)

    def percent(self, note: Note) -> int:
        """How much of everything is done after a note; training counts, the short evaluation after it does
        not."""
        if note.what == "training":
            self.share[note.name] = note.done / note.total
        elif note.done:
            self.share[note.name] = 1.0
        done = sum(self.size[name] * share for name, share in self.share.items())
        return round(100 * done / sum(self.size.values()))


def work(recipe: Recipe) -> float:
    """Roughly how long a step takes: an attack of ten steps costs eleven natural steps."""
    return sum(1.0 if isinstance(task.objective, Natural) else 11.0 for task in recipe.tasks)


def outcome_file(run: Path) -> Path:
    """Where a run's final evaluation is kept."""
    return run / "eval" / "best" / "outcome.safetensors"


def train_and_evaluate(name: str, send: Send, out: Path, sets: Sequence[str]) -> None:
    """Train a shipped recipe and evaluate its selected global weights, unless that was done before."""
    recipe = Recipe.load(name, sets)
    run = train(recipe, out, resume=True, progress=Reporter(name, send))
    file = outcome_file(run.folder)
    if file.exists():
        send(Note(name, 1, 1, "was done before"))
        return

    origin = {"weights": "best", "selected_on": recipe.validation.on, "recipe": recipe.fingerprint()}
    evaluate(
        load(run.folder, "best"),
        recipe.read_data(),
        probes=recipe.probes,
        out=file.parent,
        about=origin,
        progress=lambda note: send(replace(note, name=name)),
    )


def run_all(
    recipes: Mapping[str, Recipe], folder: Path, show: Send, *, workers: int = 2, sets: Sequence[str] = ()
) -> dict[str, Outcome]:
    """Run every recipe of the demonstration, several at once."""
    # The longest first, so that no long one is left alone at the end.
    order = sorted(recipes, key=lambda name: -work(recipes[name]))
    jobs = {name: partial(train_and_evaluate, out=run_folder(folder, name), sets=sets) for name in order}
    run_jobs(jobs, workers, show)
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
    first = next(iter(outcomes.values()))
    threats = ", ".join(probe.partition("@")[2] for probe in first.probes(ATTACK))
    lines = [f"{len(first)} test images; threats {threats}; global weights of the best point in training."]
    for rule, where in (
        ("validation", "images cut from the training set"),
        ("test", "the TEST set, too optimistic"),
    ):
        by = [RECIPES[name] for name, outcome in outcomes.items() if outcome.facts["selected_on"] == rule]
        if by:
            lines.append(f"Selected on {where}: {'all' if len(by) == len(outcomes) else ', '.join(by)}.")
    return lines
