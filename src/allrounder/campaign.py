"""Running a study: what is finished is skipped, what was interrupted goes on, failures stop none of the rest.

study.toml        what is compared
LABEL/seed-N      a run folder, with its outcome in eval/best, and in evaluated.json what that is of
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from allrounder.errors import RunError
from allrounder.evaluation import OUTCOME, evaluate
from allrounder.outcome import Outcome
from allrounder.pool import Job, Note, Send, run_jobs
from allrounder.recipe import Recipe
from allrounder.results import Results
from allrounder.runs import Run, load
from allrounder.storage import write_text
from allrounder.study import Study, Trial
from allrounder.trainer import train

STUDY, SEAL = "study.toml", "evaluated.json"
EVALUATED = Path("eval") / "best"


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
    """Adds up the work of all trainings, for one bar."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        """Nothing is done yet."""
        self.size = {trial.folder: trial.work for trial in trials}
        self.share = dict.fromkeys(self.size, 0.0)

    def percent(self, note: Note) -> int:
        """How much of everything is done after a note; the short evaluation after a training is left out."""
        self.share[note.name] = note.done / max(note.total, 1) if note.what == "training" else 1.0
        done = sum(self.size[name] * share for name, share in self.share.items())
        return round(100 * done / sum(self.size.values()))


def begin(study: Study, folder: Path) -> list[Trial]:
    """Make a study's folder, or take up one of the same study; seeds may be added."""
    trials, file = study.trials(), folder / STUDY
    if file.is_file():
        there = Study.loads(file.read_text(encoding="utf-8"), str(file))
        if replace(there, seeds=study.seeds, name="", about="") != replace(study, name="", about=""):
            raise RunError(
                f"{folder}: holds another study ({there.name}: {', '.join(there.labels())}), asked for "
                f"{study.name}: {', '.join(study.labels())}; choose another --out, nothing was changed"
            )
        study = replace(study, seeds=tuple(dict.fromkeys([*there.seeds, *study.seeds])))
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"{folder}: is not empty and holds no study; choose another --out, nothing was changed"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, study.dump())
    return trials


def jobs_of(trials: Sequence[Trial], folder: Path, images: int | None) -> dict[str, Job]:
    """What there is to do, the longest first, so that no long one is left alone at the end."""
    order = sorted(trials, key=lambda trial: -trial.work)
    return {
        trial.folder: partial(
            carry_out,
            recipe=trial.recipe.dump(),
            folder=folder / trial.folder,
            cost=str(trial.cost),
            images=images,
        )
        for trial in order
    }


def run_study(study: Study, folder: Path, show: Send, *, workers: int = 2) -> None:
    """Train and evaluate everything, several at once, each in a process of one thread."""
    run_jobs(jobs_of(begin(study, folder), folder, study.images), workers, show)


def carry_out(name: str, send: Send, *, recipe: str, folder: Path, cost: str, images: int | None) -> None:
    """Train a recipe and evaluate its selected global weights, unless that was done before."""
    value = Recipe.loads(recipe)
    run = train(value, folder, resume=True, progress=Reporter(name, send))
    which = "best" if value.validation.images or value.validation.on == "test" else "last"
    place, seal = folder / EVALUATED, {"recipe": value.fingerprint(), "weights": digest(run, which)}
    if (place / OUTCOME).exists():
        outcome_of(folder, value, images)
        send(Note(name, 1, 1, "was done before"))
        return
    about = {"weights": which, "recipe": value.fingerprint(), "cost": cost}
    about |= {"selected_on": value.validation.on} if which == "best" else {}
    about |= {} if value.extra is None else {"extra": str(value.extra)}
    place.mkdir(parents=True, exist_ok=True)
    write_text(folder / SEAL, json.dumps({**seal, "which": which}))
    evaluate(
        load(run.folder, which),
        value.read_data(),
        probes=value.probes,
        n=images,
        budget="full",
        out=place,
        # A training that came to nothing is a result too; its findings stand below the table.
        check="note",
        about=about,
        progress=lambda note: send(replace(note, name=name, what=note.what or "evaluation")),
    )


def digest(run: Run, which: str) -> str:
    """Of the weights that were evaluated."""
    found = hashlib.sha256()
    for name, tensor in sorted(run.weights(which)[0].items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def outcome_of(folder: Path, recipe: Recipe, images: int | None) -> Outcome:
    """The outcome of a run, which must be of this recipe and of the weights that are there now."""
    run = Run(folder)
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        now = {"recipe": run.recipe.fingerprint(), "weights": digest(run, seal["which"])}
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{folder / SEAL}: cannot be read ({error}); remove {folder}, and call again"
        ) from None
    for key, got in now.items():
        if seal.get(key) != got:
            raise RunError(
                f"{folder}: was evaluated with {key} {seal.get(key)}, but now has {got}: it was changed by "
                "hand; remove it, and call again"
            )
    if now["recipe"] != recipe.fingerprint():
        raise RunError(
            f"{folder}: holds a run of another recipe ({now['recipe']}, the study says "
            f"{recipe.fingerprint()}); remove it, or ask for the study that it is of"
        )
    outcome = Outcome.load(folder / EVALUATED / OUTCOME)
    if images is not None and len(outcome) != images:
        raise RunError(
            f"{folder}: was evaluated on {len(outcome)} images, expected {images}; remove its eval"
        )
    return outcome


def gather(study: Study, folder: Path) -> Results:
    """What is there of a study: outcomes by row and seed, checked; and what is not."""
    found: dict[str, dict[int, Outcome]] = {label: {} for label in study.labels()}
    cost: dict[str, str] = {}
    missing: list[str] = []
    for trial in study.trials():
        cost[trial.label] = str(trial.cost)
        place = folder / trial.folder
        if not (place / EVALUATED / OUTCOME).is_file():
            missing.append(f"{trial.label}, seed {trial.seed}")
            continue
        found[trial.label][trial.seed] = outcome_of(place, trial.recipe, study.images)
    there = {label: seeds for label, seeds in found.items() if seeds}
    return Results(there, study.paper(), cost, study.reference, study.source, missing)
