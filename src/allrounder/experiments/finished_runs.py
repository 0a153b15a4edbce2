"""Finished runs whose networks are combined, and the images that all of them held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from allrounder.config.fields import canonical
from allrounder.data.base import Data, Split
from allrounder.data.fingerprint import fingerprint_data
from allrounder.errors import InputError, RunError
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat
from allrounder.training.data import TrainingData, train_val_split
from allrounder.training.run import Run, identify_recipe


@final
@dataclass(frozen=True, eq=False)
class FinishedRuns:
    """Runs by label, which trained on the same images and held out the same images."""

    runs: Mapping[str, Run]
    facts: Mapping[str, Mapping[str, Any]]
    """The manifest of the last weights of every run."""
    data: TrainingData
    held_out: Split
    """Images that no run trained on; never test images."""

    @classmethod
    def open(cls, folders: Sequence[str | Path], data: Data | None = None) -> FinishedRuns:
        """Open finished runs; `data` replaces the dataset of the recipes, as in `train`."""
        runs = {label: Run(folder) for label, folder in label_folders(folders).items()}
        facts = {label: run.weights()[1] for label, run in runs.items()}
        (first, first_run), *others = runs.items()
        for label, _ in others:
            _check_same_dataset(first, label, runs, facts)
        training_data = TrainingData.load(first_run.recipe, data)
        for label, _ in others:
            _check_same_splits(first, label, runs, training_data.dataset)
        return cls(runs, facts, training_data, _held_out(first_run, training_data.dataset))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first run, whose seed, batch size and validation are used."""
        return next(iter(self.runs.values())).recipe

    @property
    def threats(self) -> tuple[Threat, ...]:
        """The threats that the best weights of any of the runs are selected by."""
        return tuple(dict.fromkeys(t for run in self.runs.values() for t in run.recipe.selection_threats))

    def describe(self) -> dict[str, str]:
        """Return the name and fingerprint of every run's recipe, by label."""
        return {label: identify_recipe(run.recipe) for label, run in self.runs.items()}


def label_folders(folders: Sequence[str | Path]) -> dict[str, Path]:
    """Return folders by name. What the ends of all paths have in common is left out, and parents are added
    until the names differ: a/seed-0 and b/seed-0 are called a and b."""
    paths = [Path(folder) for folder in folders]
    parts = [path.resolve().parts for path in paths]
    if not parts or len(set(parts)) < len(parts):
        raise InputError(f"runs: got {[str(path) for path in paths]}, expected different run folders")
    while len(parts) > 1 and len({path[-1] for path in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [path[:-1] for path in parts]
    count = 1
    while len({path[-count:] for path in parts}) < len(parts):
        count += 1
    return {"/".join(path[-count:]): folder for path, folder in zip(parts, paths, strict=True)}


def _check_same_dataset(
    first: str, label: str, runs: Mapping[str, Run], facts: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise RunError unless two runs are of the same dataset."""
    a, b = (canonical(runs[name].recipe.data) for name in (first, label))
    same = all(facts[first][key] == facts[label][key] for key in ("classes", "shape"))
    if a != b or not same:
        got = f"{label} was trained on {facts[label]['data']}, {first} on {facts[first]['data']}"
        raise RunError(f"{runs[label].folder}: {got}, expected the same data; choose runs of one dataset")


def _check_same_splits(first: str, label: str, runs: Mapping[str, Run], dataset: Data) -> None:
    """Raise RunError unless two runs trained on the same images and held out the same ones."""
    a, b = (_fingerprint_splits(runs[name], dataset) for name in (first, label))
    if a != b:
        reason = f"{label} and {first} held out different images, so some images are new to one of them only"
        advice = "train both with the same seed, train_images and validation"
        raise RunError(f"{runs[label].folder}: {reason}; {advice}")


def _held_out(run: Run, dataset: Data) -> Split:
    """Return the images that a run held out from its training images."""
    held_out = train_val_split(run.recipe, dataset)[1]
    if held_out is None:
        on_test = run.recipe.validation.on == "test"
        reason = "it selected its weights on the test set" if on_test else "validation.images is 0"
        advice = "train it again with validation.on=validation and validation.images=10%"
        raise RunError(f"{run.folder}: held out no training images, {reason}; {advice}")
    return held_out


def _fingerprint_splits(run: Run, dataset: Data) -> list[dict[str, Any]]:
    """Return digests of the images that a run trained on and of those that it held out."""
    train, _ = train_val_split(run.recipe, dataset)
    return [fingerprint_data(split) for split in (train, _held_out(run, dataset))]
