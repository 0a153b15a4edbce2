"""A finished run with several learners, and runs that train one of its tasks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from torch import nn

from allrounder.config.time import Clock
from allrounder.data.base import Data
from allrounder.errors import RunError
from allrounder.evaluation.evaluate import select_rows
from allrounder.models.factory import ModelLike, as_factory
from allrounder.nn.mixing import Chosen
from allrounder.nn.state import clone, copy_, weights_of
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.report.regret import learner_regret
from allrounder.system.checked_files import read_manifest
from allrounder.system.files import newest_folder
from allrounder.training.data import TrainingData
from allrounder.training.learner import frozen_copy
from allrounder.training.run import Run, load
from allrounder.training.setup import build_initial_model
from allrounder.training.share_choice import average_shares
from allrounder.types import Images, Labels, Weights, device_and_dtype

SoloRuns: TypeAlias = Mapping[str, tuple[Run, Task]]
"""By the names of tasks: the run that trains the task alone, and the task there, which may have another
name."""


@final
@dataclass(frozen=True, eq=False)
class MixedRun:
    """A run, its network and its images, loaded once."""

    run: Run
    network: nn.Module
    start: Weights | None
    """The initial weights; None if they came from other runs, which may be gone."""
    data: TrainingData
    points: tuple[str, ...]
    """The saved points: "last", and "best" if weights of an earlier step were selected."""
    x: Images
    """Test images."""
    y: Labels

    @classmethod
    def load(cls, run: Run, n: int, model: ModelLike | None, data: Data | None) -> MixedRun:
        """Load a run and `n` of its test images; raise RunError if it is not finished or mixes nothing."""
        recipe = run.recipe
        if recipe.pipeline is not None:
            raise RunError(f"{run.folder}: is a pipeline; name the folder of one of its stages")
        if len(recipe.tasks) < 2:
            raise RunError(
                f"{run.folder}: has one learner, expected several that are mixed; name another run"
            )
        network, images, start = load(run, "last", model=model), TrainingData.load(recipe, data), None
        if recipe.init == Random():
            start = clone(weights_of(build_initial_model(recipe, as_factory(model), images.dataset)))
        best = newest_folder(run.folder / "weights", "best")
        is_earlier = best is not None and read_manifest(best, "t")["t"] < images.clock.total_steps
        split = images.dataset.test
        rows = select_rows(split, n, recipe.seed)
        device, dtype = device_and_dtype(network)
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)
        return cls(run, network, start, images, ("best", "last") if is_earlier else ("last",), x, y)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self.data.clock

    def weights(self, name: str, point: str = "last") -> Weights:
        """Return the weights of a learner, or the global ones, at a saved point."""
        return self.run.weights(f"{name}@{point}")[0]

    def shares(self, point: str) -> dict[str, float]:
        """Return the shares of the learners at a saved point: those of the last exchange before it if the mix
        rule chooses shares, else those of the recipe."""
        t, mix = self.run.weights(f"global@{point}")[1]["t"], self.recipe.effective_mix
        if isinstance(mix.rule, Chosen):
            chosen = [event for event in self.run.metrics() if event["event"] == "shares" and event["t"] < t]
            if chosen:
                return average_shares(chosen[-1]["shares"])
        return mix.shares_at(t, self.clock, self.recipe.names)

    def teachers(self, task: Task) -> dict[str, nn.Module]:
        """Return the networks that teach a task, with their last weights."""
        teachers = {name: frozen_copy(self.network) for name in task.objective.teachers().values()}
        for name, network in teachers.items():
            copy_(weights_of(network), self.weights(name))
        return teachers


def match_solo_runs(run: Run, solo_runs: Sequence[Run]) -> SoloRuns:
    """Find the tasks of a run that other runs train alone; raise RunError for a run that trains none."""
    matches: dict[str, tuple[Run, Task]] = {}
    for solo in solo_runs:
        same_inputs = (solo.recipe.data, solo.recipe.model) == (run.recipe.data, run.recipe.model)
        only, *others = solo.recipe.tasks
        same = [task.name for task in run.recipe.tasks if same_inputs and _loss_of(task) == _loss_of(only)]
        if not same or others:
            expected = f"expected one learner with the data, the network and a task of {run.folder}"
            raise RunError(f"--solo {solo.folder}: trains {', '.join(solo.recipe.names)}, {expected}")
        matches |= dict.fromkeys(same, (solo, only))
    return matches


def solo_infima(solo_runs: SoloRuns) -> tuple[dict[str, float], dict[str, float]]:
    """Return the smallest loss and the smallest error of an epoch of every solo run, by task."""
    logs = {name: (solo.metrics(), task.name) for name, (solo, task) in solo_runs.items()}
    losses = {name: learner_regret(log, task).infimum for name, (log, task) in logs.items()}
    errors = {name: learner_regret(log, task, "error").infimum for name, (log, task) in logs.items()}
    return losses, errors


def _loss_of(task: Task) -> tuple[object, ...]:
    """Return what decides the loss that a task logs."""
    return task.objective, task.label_smoothing, task.augment
