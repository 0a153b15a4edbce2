"""The rows of a report that a run folder or an evaluation folder gives, without torch.

What is damaged, missing or unfinished becomes a problem of its row, and the rest of the row is read.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, final

from allrounder.config.toml import parse_toml
from allrounder.errors import RESUME_HINT, AllrounderError, RunError
from allrounder.experiments.manifest import EVALUATION_FOLDER, newest_weights, training_seconds
from allrounder.report.dial import read_points
from allrounder.report.entry import Entry, TrainingFacts
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.system.checked_files import ADVICE, read_json, read_manifest
from allrounder.system.files import newest_folder
from allrounder.training.record import FORMAT_VERSION, RECIPE_FILE, RunRecord, read_recipe_text
from allrounder.training.record_fields import SESSION_FIELDS

ENV_FILE = "env.json"
PLAN_FILE = "plan.json"
SHOWN_WEIGHTS = ("best", "last", "global")
"""A run is shown with the first of these weights that was evaluated; others get rows of their own."""


@contextmanager
def note_damage(problems: list[str]) -> Generator[None]:
    """Within the context, an error about stored files ends the context and is added to the problems."""
    try:
        yield
    except (AllrounderError, OSError) as error:
        problems.append(str(error))


def read_training(folder: Path, problems: list[str], advice: str = RESUME_HINT) -> TrainingFacts | None:
    """Read what a run folder says about its training; None if its recipe or its log is damaged. `advice` says
    how to continue an unfinished one."""
    with note_damage(problems):
        record = RunRecord.read(folder)
        if record.state != "finished":
            problems.append(f"{folder}: {record.state}; {'wait for its end' if record.running else advice}")
        training = TrainingFacts(
            folder=str(folder),
            state=record.state,
            recipe=read_recipe_text(folder),
            learners=tuple(record.learners),
            epochs=record.epochs,
            events=record.events,
            exchanges=tuple(sorted(record.count_exchanges().elements())),
        )
        with note_damage(problems):
            sessions = read_json(folder / ENV_FILE, ADVICE, FORMAT_VERSION, SESSION_FIELDS)["sessions"]
            training = replace(training, sessions=tuple(sessions))
        with note_damage(problems):
            training = replace(training, mixtures=read_points(folder))
        return training
    return None


def read_minutes(folder: Path, training: TrainingFacts | None, problems: list[str]) -> tuple[float, ...]:
    """Read the minutes of a finished training, without validation."""
    if training is not None and training.state == "finished":
        with note_damage(problems):
            return (training_seconds(folder) / 60,)
    return ()


def read_classes(folder: Path, problems: list[str]) -> tuple[str, ...]:
    """Read the names of the classes from the newest weights of a run; empty if there are none."""
    weights = newest_folder(folder / "weights", "best") or newest_folder(folder / "weights", "last")
    with note_damage(problems):
        return () if weights is None else tuple(read_manifest(weights).get("classes", ()))
    return ()


def read_run_rows(folder: Path) -> list[Entry]:
    """Read a run: a row for its best weights, else its last, and one for each of the others evaluated."""
    problems: list[str] = []
    training = read_training(folder, problems)
    recipe = {} if training is None else parse_toml(training.recipe, str(folder / RECIPE_FILE))
    name = str(recipe.get("name") or folder.resolve().name)
    minutes = read_minutes(folder, training, problems)
    run = Entry(name, minutes=minutes, classes=read_classes(folder, problems))
    evaluations = _read_evaluations(folder)
    shown = next((which for which in SHOWN_WEIGHTS if which in evaluations), None)
    if shown is None and training is not None and training.state == "finished":
        problems.append(f"{folder}: not evaluated; evaluate it with: allrounder eval {folder}")
    first = evaluations.pop(shown) if shown is not None else _Evaluation()
    first = replace(first, problems=(*problems, *first.problems))
    seed = cast(int, recipe.get("seed", 0))
    rows = [first.to_entry(replace(run, trainings={} if training is None else {seed: training}), seed)]
    for which, evaluation in evaluations.items():
        rows.append(evaluation.to_entry(replace(run, name=f"{name} ({which})"), seed))
    return rows


def read_evaluation_row(folder: Path) -> Entry:
    """Read the folder of an evaluation by itself, such as that of a network that was trained elsewhere."""
    problems: list[str] = []
    outcome = _read_outcome(folder, problems)
    name = None if outcome is None else outcome.facts.get("name")
    evaluation = _Evaluation(outcome, tuple(problems))
    return evaluation.to_entry(Entry(str(name or folder.resolve().name)), 0)


def is_evaluation(folder: Path) -> bool:
    """Whether a folder holds an evaluation, finished or not."""
    return (folder / PLAN_FILE).is_file() or (folder / OUTCOME_FILE).is_file()


@final
@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The outcome of an evaluation, and what is wrong with it."""

    outcome: Outcome | None = None
    problems: tuple[str, ...] = ()

    def to_entry(self, entry: Entry, seed: int) -> Entry:
        """Return a row with this outcome and these problems, each once."""
        entry = replace(entry, problems=tuple(dict.fromkeys(self.problems)))
        if self.outcome is None:
            return entry
        return replace(entry, outcomes={seed: self.outcome}, cost=str(self.outcome.facts.get("cost", "")))


def _read_evaluations(run: Path) -> dict[str, _Evaluation]:
    """Read all evaluations of a run, by the weights that they are of."""
    evaluations: dict[str, _Evaluation] = {}
    for folder in filter(is_evaluation, sorted((run / EVALUATION_FOLDER).glob("*"))):
        problems: list[str] = []
        outcome = _read_outcome(folder, problems)
        which = folder.name
        if outcome is not None:
            named = str(outcome.facts.get("weights", which))  # the folder of linf@best is linf-best
            which = which if named in evaluations else named
            with note_damage(problems):
                fingerprint = read_manifest(newest_weights(run, which)).get("fingerprint")
                if (evaluated := outcome.facts.get("recipe", fingerprint)) != fingerprint:
                    outcome = None
                    change = f"is of recipe {evaluated}, but the run is of {fingerprint}"
                    raise RunError(f"{folder}: {change}; remove it and evaluate again")
        evaluations[which] = _Evaluation(outcome, tuple(problems))
    return evaluations


def _read_outcome(folder: Path, problems: list[str]) -> Outcome | None:
    """Read the outcome of an evaluation; None if it is damaged or missing."""
    with note_damage(problems):
        if not (folder / OUTCOME_FILE).is_file():
            unfinished = f"the evaluation is not finished, it has no {OUTCOME_FILE}"
            raise RunError(f"{folder}: {unfinished}; evaluate again, which reuses stored results")
        return Outcome.load(folder / OUTCOME_FILE)
    return None
