"""A finished run that takes a moment to train, and outcomes for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from allrounder.evaluation.identity import fingerprint_model_and_data
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.training.data import load_data
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.unit.cli.test_main import overrides

Evaluate = Callable[..., None]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, which no test may change."""
    folder = tmp_path_factory.mktemp("exported")
    sets = [*overrides(folder), "task.linf.objective.attack.steps=1", "model.mean=[0.4]", "model.std=[0.3]"]
    return train(Recipe.load("embedded/at-linf", sets), folder / "run", progress=False).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, for one test."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def evaluated(run: Path) -> Evaluate:
    """Stores an outcome of some probes in the run."""

    def store(*probes: str, which: str = "best", **facts: object) -> None:
        label = np.arange(10) % 3
        predicted = {
            name: np.where(np.arange(10) < 6 - n, label, (label + 1) % 3) for n, name in enumerate(probes)
        }
        recipe = Run(run).recipe
        known = {"recipe": recipe.fingerprint(), "weights": which, "seed": 7, "batch_size": 64}
        digests = fingerprint_model_and_data(load(run, which), load_data(recipe).test)
        known |= {key: digests[key] for key in ("network", "data")}
        folder = run / "eval" / which.replace("@", "-")
        folder.mkdir(parents=True, exist_ok=True)
        Outcome(label, predicted, {**known, **facts}).save(folder / OUTCOME_FILE)

    return store
