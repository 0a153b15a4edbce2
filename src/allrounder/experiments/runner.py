"""Running a study: what is finished is skipped, what was interrupted goes on, failures stop none of the rest.

study.toml        what is compared
LABEL/seed-N      a run folder, with outcomes such as eval/best, and in eval/best.json what that is of
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
from allrounder.evaluation.evaluate import OUTCOME, evaluate
from allrounder.experiments.study import Study, Trial
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.report.results import Results
from allrounder.system.files import write_text
from allrounder.system.processes import Job, Note, Send, run_jobs
from allrounder.training.run import Run, load
from allrounder.training.trainer import train

STUDY, EVALUATED = "study.toml", "eval"


@final
class Reporter:
    """Sends the progress of a training to the parent, a few times a second."""

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
        self.size = {trial.folder: float(trial.cost.work) for trial in trials}
        self.share = dict.fromkeys(self.size, 0.0)

    def percent(self, note: Note) -> int:
        """How much of everything is done after a note; the short evaluation after a training is left out."""
        self.share[note.name] = note.done / max(note.total, 1) if note.what == "training" else 1.0
        done = sum(self.size[name] * share for name, share in self.share.items())
        return round(100 * done / sum(self.size.values()))


def begin(study: Study, folder: Path) -> Study:
    """Make a study's folder, or take up one of the same study; seeds may be added.

    The study as the folder then holds it: with the seeds that were there, too.
    """
    study.trials()  # what is wrong with them is said before anything is written
    file, text = folder / STUDY, ""
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        there = Study.loads(text, str(file))
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
    if text != study.dump():  # many tasks of a cluster begin at once, and find it as it is
        write_text(file, study.dump())
    return study


def jobs_of(trials: Sequence[Trial], folder: Path, images: int | None) -> dict[str, Job]:
    """What there is to do, the longest first, so that no long one is left alone at the end."""
    order = sorted(trials, key=lambda trial: -trial.cost.work)
    return {
        trial.folder: partial(
            carry_out,
            recipe=trial.recipe.dump(),
            folder=folder / trial.folder,
            weights=tuple(dict.fromkeys(trial.rows.values())),
            cost=str(trial.cost),
            images=images,
        )
        for trial in order
    }


def run_study(study: Study, folder: Path, show: Send, *, workers: int = 2) -> None:
    """Train and evaluate everything, several at once, each in a process of one thread."""
    begin(study, folder)
    run_jobs(jobs_of(study.trials(), folder, study.images), workers, show)


def carry_out(
    name: str,
    send: Send,
    *,
    recipe: str,
    folder: Path,
    weights: tuple[str, ...],
    cost: str,
    images: int | None,
) -> None:
    """Train a recipe and evaluate weights of it, unless that was done before."""
    value = Recipe.loads(recipe)
    run = train(value, folder, resume=True, progress=Reporter(name, send))
    for which in weights:
        if (place_of(folder, which) / OUTCOME).exists():
            outcome_of(folder, value, which, images)
            send(Note(name, 1, 1, "was done before"))
        else:
            _evaluate(name, send, run, value, which, cost, images)


def place_of(folder: Path, which: str) -> Path:
    """Where the outcome of weights of a run stands."""
    return folder / EVALUATED / which


def seal_of(place: Path) -> Path:
    """The file beside an outcome that says what it is of."""
    return place.with_name(f"{place.name}.json")


def _evaluate(
    name: str, send: Send, run: Run, recipe: Recipe, which: str, cost: str, images: int | None
) -> None:
    place = place_of(run.folder, which)
    about = {"weights": which, "recipe": recipe.fingerprint(), "cost": cost}
    about |= {"selected_on": recipe.validation.on} if which == "best" else {}
    about |= {} if recipe.extra is None else {"extra": str(recipe.extra)}
    place.mkdir(parents=True, exist_ok=True)
    seal = {"recipe": recipe.fingerprint(), "weights": digest(run, which)}
    write_text(seal_of(place), json.dumps(seal))
    evaluate(
        load(run.folder, which),
        recipe.read_data(),
        probes=recipe.probes,
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


def outcome_of(folder: Path, recipe: Recipe, which: str, images: int | None) -> Outcome:
    """The outcome of a run, which must be of this recipe and of the weights that are there now."""
    run, place = Run(folder), place_of(folder, which)
    file = seal_of(place)
    try:
        seal = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file}: cannot be read ({error}); remove {folder}, and call again") from None
    now = {"recipe": run.recipe.fingerprint(), "weights": digest(run, which)}
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
    outcome = Outcome.load(place / OUTCOME)
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
        folder_ = folder / trial.folder
        for label, which in trial.rows.items():
            cost[label] = str(trial.cost)
            if (place_of(folder_, which) / OUTCOME).is_file():
                found[label][trial.seed] = outcome_of(folder_, trial.recipe, which, study.images)
            else:
                missing.append(f"{label}, seed {trial.seed}")
    there = {label: seeds for label, seeds in found.items() if seeds}
    return Results(there, study.paper(), cost, study.reference, study.source, missing)
