"""Measure the quantities of the theory of Generalist++ on a finished run with several learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import nn

from allrounder.config.time import Clock
from allrounder.data.base import Data
from allrounder.errors import RunError
from allrounder.evaluation.evaluate import select_rows
from allrounder.experiments.theory.bound import compute_theorem1, task_errors
from allrounder.experiments.theory.gap import MixingGap, measure_gap
from allrounder.experiments.theory.gradients import (
    GradientProducts,
    batch_gradients,
    compare_gradients,
    draw_batches,
)
from allrounder.experiments.theory.quantities import Theory
from allrounder.models.factory import ModelLike, as_factory
from allrounder.nn.state import clone, weights_of
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.report.regret import exchange_jumps, global_regret, learner_regret, trade_off_regret
from allrounder.rng import Rng
from allrounder.system.checked_files import read_manifest
from allrounder.system.files import newest_folder
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.training.data import TrainingData
from allrounder.training.record import RunRecord
from allrounder.training.run import Run, load
from allrounder.training.setup import build_initial_model
from allrounder.types import NamedTensors, Weights, device_and_dtype

DEFAULT_IMAGES = 256


@final
@dataclass(frozen=True, eq=False)
class _Subject:
    """A run, its network and its images, loaded once."""

    run: Run
    network: nn.Module
    start: Weights | None
    """The initial weights; None if they came from other runs, which may be gone."""
    data: TrainingData
    points: tuple[str, ...]
    """The saved points: "last", and "best" if weights of an earlier step were selected."""

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    @property
    def clock(self) -> Clock:
        return self.data.clock

    @classmethod
    def load(cls, run: Run, model: ModelLike | None, data: Data | None) -> _Subject:
        recipe, images = run.recipe, TrainingData.load(run.recipe, data)
        start = None
        if recipe.init == Random():
            start = clone(weights_of(build_initial_model(recipe, as_factory(model), images.dataset)))
        best = newest_folder(run.folder / "weights", "best")
        is_other = best is not None and read_manifest(best)["t"] < images.clock.total_steps
        network = load(run, "last", model=model)
        return cls(run, network, start, images, ("best", "last") if is_other else ("last",))


def measure_theory(
    run: Run | str | Path,
    *,
    solo: Sequence[str | Path] = (),
    n: int = DEFAULT_IMAGES,
    model: ModelLike | None = None,
    data: Data | None = None,
    progress: ProgressCallback = lambda _: None,
) -> Theory:
    """Measure what docs/guide/theory.md describes, on `n` test images of a finished run.

    `solo` names finished runs that train a task of the run alone. A network or dataset that was passed to
    `train` from Python must be passed again.
    """
    run = run if isinstance(run, Run) else Run(run)
    solo_runs = _match_solo(run, [Run(folder) for folder in solo])
    _check_run(run)
    subject = _Subject.load(run, model, data)
    recipe, names, events = run.recipe, run.recipe.names, run.metrics()
    split = subject.data.dataset.test
    rows = select_rows(split, n, recipe.seed)
    x, y = split.fetch(rows).to(*device_and_dtype(subject.network)), split.labels[rows]
    y = y.to(x.device)
    stages = _count_stages(len(recipe.tasks), len(subject.points), subject.start is not None, len(solo_runs))
    report = _Reporter(progress, stages)
    gaps = {point: _measure_gap(subject, point, x, y, report) for point in subject.points}
    errors: dict[str, dict[str, float]] = {}
    for name in ("global", *names):
        weights, rng = run.weights(name)[0], Rng(recipe.seed)
        attack = recipe.validation.attack
        errors[name] = task_errors(subject.network, weights, recipe.tasks, attack, x, y, rng)
        report.advance(f"test errors of {name}")
    solo_events = {name: (solo_run.metrics(), task.name) for name, (solo_run, task) in solo_runs.items()}
    infima = {name: learner_regret(log, task).infimum for name, (log, task) in solo_events.items()}
    error_infima = {
        name: learner_regret(log, task, "error").infimum for name, (log, task) in solo_events.items()
    }
    error_regret = trade_off_regret(events, names, "error", error_infima)
    exchange_epochs = RunRecord.read(run.folder).count_exchanges()
    losses = {
        name: {e["epoch"]: e["loss"] for e in events if e["event"] == "epoch" and e["learner"] == name}
        for name in names
    }
    learner_errors = {name: errors[name] for name in names}
    return Theory(
        run=recipe.name or run.folder.name,
        steps=subject.clock.total_steps,
        images=len(rows),
        classes=len(subject.data.dataset.classes),
        regret=trade_off_regret(events, names, "loss", infima),
        error_regret=error_regret,
        global_regret=global_regret(events, [_threat_names(task) for task in recipe.tasks]),
        jumps={name: exchange_jumps(losses[name], exchange_epochs) for name in names},
        errors=errors,
        theorem1=compute_theorem1(
            errors["global"], learner_errors, error_regret.per_step, subject.clock.total_steps
        ),
        gaps=gaps,
        gradients=dict(_measure_gradients(subject, solo_runs, report)),
        exchanges=tuple(event for event in events if event["event"] == "exchange"),
        solo={name: str(solo_run.folder) for name, (solo_run, _) in solo_runs.items()},
    )


def _check_run(run: Run) -> None:
    if run.recipe.pipeline is not None:
        raise RunError(f"{run.folder}: is a pipeline; name the folder of one of its stages")
    if len(run.recipe.tasks) < 2:
        raise RunError(f"{run.folder}: has one learner, expected several that are mixed; name another run")


def _match_solo(run: Run, solo_runs: Sequence[Run]) -> dict[str, tuple[Run, Task]]:
    """Return for every task of a run the solo run that trains the same task, and its task there."""
    matches: dict[str, tuple[Run, Task]] = {}
    for solo in solo_runs:
        same_inputs = (solo.recipe.data, solo.recipe.model) == (run.recipe.data, run.recipe.model)
        found = {
            task.name: (solo, other)
            for task in run.recipe.tasks
            for other in solo.recipe.tasks
            if same_inputs and _loss_of(task) == _loss_of(other)
        }
        if not found or len(solo.recipe.tasks) > 1:
            expected = f"expected one learner with the data, the network and a task of {run.folder}"
            raise RunError(f"--solo {solo.folder}: trains {', '.join(solo.recipe.names)}, {expected}")
        matches |= found
    return matches


def _loss_of(task: Task) -> tuple[object, ...]:
    """Return what decides the loss that a task logs."""
    return task.objective, task.label_smoothing, task.augment


def _threat_names(task: Task) -> list[str]:
    return [str(threat) for threat in task.objective.threats()]


@final
class _Reporter:
    def __init__(self, progress: ProgressCallback, total: int):
        self.progress = progress
        self.total = total
        self.done = 0

    def advance(self, stage: str) -> None:
        """Report that a stage is done."""
        self.done += 1
        self.progress(ProgressEvent("", self.done, self.total, stage))


def _count_stages(tasks: int, points: int, has_start: bool, solo: int) -> int:
    gradients = tasks * (points + 1 + has_start) + solo
    return points + tasks + 1 + gradients


def _at(name: str, point: str) -> str:
    return f"{name}@{point}" if point == "best" else name


def _measure_gap(
    subject: _Subject, point: str, x: torch.Tensor, y: torch.Tensor, report: _Reporter
) -> MixingGap:
    run, recipe = subject.run, subject.recipe
    theta_g, facts = run.weights(_at("global", point))
    learners = {name: run.weights(_at(name, point))[0] for name in recipe.names}
    shares = recipe.effective_mix.shares_at(facts["t"], subject.clock, recipe.names)
    gap = measure_gap(subject.network, learners, shares, theta_g, x, y)
    report.advance(f"mixing gap at the {point} weights")
    return gap


def _measure_gradients(
    subject: _Subject, solo_runs: Mapping[str, tuple[Run, Task]], report: _Reporter
) -> Iterator[tuple[str, dict[str, GradientProducts]]]:
    """Yield the products of every task at the weights that exist: initial, of its learner, global, solo."""
    run, rng = subject.run, Rng(subject.recipe.seed)
    for task in subject.recipe.tasks:
        weights: dict[str, NamedTensors] = {} if subject.start is None else {"start": subject.start}
        weights["learner"] = run.weights(task.name)[0]
        weights |= {point: run.weights(_at("global", point))[0] for point in subject.points}
        if task.name in solo_runs:
            solo, other = solo_runs[task.name]
            weights["solo"] = solo.weights(other.name)[0]
        batches = draw_batches(subject.data.train, task, subject.recipe.batch_size, subject.network, rng)
        products: dict[str, GradientProducts] = {}
        for point, theta in weights.items():
            grads = batch_gradients(subject.network, theta, task, batches, subject.clock, rng)
            products[point] = compare_gradients(grads)
            report.advance(f"gradients of {task.name} at {point}")
        yield task.name, products
