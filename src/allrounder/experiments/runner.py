"""Run a study: finished trials are skipped, interrupted ones resume, a failed one stops none of the others.

study.toml            the study
study.json            its manifest, which `allrounder table` reads
LABEL/seed-N          the run folder of a trial
LABEL/seed-N/eval     the outcome of each set of weights, such as best/, and beside it best.json, the
                      signature of the recipe and the weights that were evaluated
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from allrounder.data.base import Data, Split
from allrounder.errors import RunError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.manifest import (
    STUDY_FILE,
    Manifest,
    TrialEntry,
    evaluation_folder,
    load_trial_outcome,
    make_signature,
    read_study_text,
    write_signature,
)
from allrounder.experiments.published import is_published
from allrounder.experiments.study import Study, Trial
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import OUTCOME_FILE
from allrounder.system.checked_files import write_toml_text
from allrounder.system.files import LOCK_FILE, check_location, lock_folder, make_folder, temporary_path
from allrounder.system.processes import Job
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.training.data import load_data, train_val_split
from allrounder.training.run import load
from allrounder.training.train import train


@final
@dataclass
class ProgressSender:
    """Sends the progress of a training to the parent process, at most four times a second."""

    name: str
    send: ProgressCallback
    total: int = 1
    last_sent: float = 0.0

    def begin(self, total: int, done: int) -> None:
        """Send the number of steps, and how many an earlier session took."""
        self.total = total
        self.send(ProgressEvent(self.name, done, total, "training"))

    def step(self, t: int) -> None:
        """Send step t, unless the last event is too recent."""
        if time.monotonic() - self.last_sent > 0.25 or t == self.total:
            self.last_sent = time.monotonic()
            self.send(ProgressEvent(self.name, t, self.total, "training"))

    def log(self, text: str) -> None:
        """No-op: `allrounder show` prints the warnings about a recipe."""


@final
class TotalProgress:
    """The progress of all trials together, for one bar, each weighted by its cost."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.work = {trial.folder: float(trial.cost.work) for trial in trials}
        self.fraction_done = dict.fromkeys(self.work, 0.0)

    def percent_done(self, event: ProgressEvent) -> int:
        """Return the percentage of work done after an event. Only training counts: evaluations are short."""
        fraction = event.done / max(event.total, 1) if event.stage == "training" else 1.0
        self.fraction_done[event.name] = fraction
        done = sum(self.work[name] * share for name, share in self.fraction_done.items())
        return round(100 * done / sum(self.work.values()))


def open_study(study: Study, folder: Path) -> Study:
    """Create or reopen the folder of a study; return it with all its seeds. Seeds, and rows after the last
    one, may be added to it."""
    file = folder / STUDY_FILE
    check_location(folder)
    if is_published(folder):
        reason = "holds a published study, which has no weights and nothing to resume"
        raise RunError(f"{folder}: {reason}; choose another --out, nothing was changed")
    if not file.is_file():
        ours = {file.name, temporary_path(file).name, LOCK_FILE}
        if folder.exists() and any(path.name not in ours for path in folder.iterdir()):
            reason = "is not empty and holds no study"
            raise RunError(f"{folder}: {reason}; choose another --out, nothing was changed")
        make_manifest(study)  # raises if a recipe is wrong, before anything is written
        make_folder(folder)
    with lock_folder(folder, "opening a study", wait=True):  # cluster tasks may start together
        return _write_study(study, folder)


def _write_study(study: Study, folder: Path) -> Study:
    """Write what the folder of a study does not have yet; return the study with all its seeds."""
    file = folder / STUDY_FILE
    text = ""
    if file.is_file():
        text = read_study_text(folder)
        existing = Study.loads(text, str(file))
        unchanged = replace(existing, seeds=study.seeds, row=study.row, name=study.name, about=study.about)
        # A row before others that share its training would move their run folder.
        if unchanged != study or study.row[: len(existing.row)] != existing.row:
            old, new = (f"{value.name}: {', '.join(value.labels())}" for value in (existing, study))
            reason = f"holds another study ({old}), asked for {new}"
            raise RunError(f"{folder}: {reason}; choose another --out, nothing was changed")
        study = replace(study, seeds=tuple(dict.fromkeys([*existing.seeds, *study.seeds])))
    manifest = make_manifest(study)
    if text != study.dumps():
        write_toml_text(file, study.dumps())
    manifest.save(folder)
    return study


def make_jobs(
    trials: Sequence[Trial],
    folder: Path,
    images: int | None,
    ood: Sequence[str] = (),
    held_out: bool = False,
) -> dict[str, Job]:
    """Return one job per trial, the most expensive first, so that no long one runs alone at the end."""
    order = sorted(trials, key=lambda trial: -trial.cost.work)
    return {
        trial.folder: partial(
            run_trial, trial=trial, folder=folder / trial.folder, images=images, ood=ood, held_out=held_out
        )
        for trial in order
    }


def run_trial(
    name: str,
    send: ProgressCallback,
    *,
    trial: Trial,
    folder: Path,
    images: int | None,
    ood: Sequence[str] = (),
    held_out: bool = False,
) -> None:
    """Train a recipe and evaluate its rows' weights; what an earlier call finished is checked and reused."""
    recipe = trial.recipe
    run = train(recipe, folder, resume=True, progress=ProgressSender(name, send))
    for which in dict.fromkeys(trial.rows.values()):
        out = evaluation_folder(folder, which)
        if (out / OUTCOME_FILE).exists():
            load_trial_outcome(folder, recipe.fingerprint(), which, images)
            send(ProgressEvent(name, 1, 1, "already done"))
            continue
        make_folder(out)
        signature = make_signature(folder, recipe.fingerprint(), run.weights_file(which))
        write_signature(out, signature)
        about = {"weights": which, "recipe": recipe.fingerprint(), "cost": str(trial.cost)}
        about |= {"selected_on": recipe.validation.on} if which == "best" else {}
        about |= {} if recipe.extra is None else {"extra": str(recipe.extra)}
        about |= {"split": "held-out"} if held_out else {}
        evaluate(
            load(folder, which),
            load_images(recipe, held_out),
            probes=recipe.probes,
            ood=ood,
            n=images,
            budget="full",
            out=out,
            progress=lambda event: send(replace(event, name=name, stage=event.stage or "evaluation")),
            # A training that failed to learn is a result too; the findings are printed below the table.
            options=EvalOptions(check="note", about=about),
        )


def load_images(recipe: Recipe, held_out: bool) -> Data | Split:
    """Load the images that a trial is evaluated on: the dataset, or the images that its recipe holds out."""
    data = load_data(recipe)
    if not held_out:
        return data
    _, images = train_val_split(recipe, data)
    assert images is not None, "Study.trials checks it"
    return images


def make_manifest(study: Study) -> Manifest:
    """Return the manifest of a study, from which its table is made."""
    trials = [
        TrialEntry(
            folder=trial.folder,
            seed=trial.seed,
            recipe=trial.recipe.fingerprint(),
            cost=str(trial.cost),
            rows=trial.rows,
        )
        for trial in study.trials()
    ]
    return Manifest(
        name=study.name,
        labels=tuple(study.labels()),
        trials=tuple(trials),
        paper=study.paper_results(),
        reference=study.reference,
        source=study.source,
        images=study.images,
        minutes=study.paper_minutes(),
    )
