"""Measure the quantities of the theory of Generalist++ on a finished run with several learners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from allrounder.data.base import Data
from allrounder.experiments.theory.bound import compute_theorem1, task_errors
from allrounder.experiments.theory.gap import MixingGap, measure_gap
from allrounder.experiments.theory.gradients import (
    GradientProducts,
    batch_gradients,
    compare_gradients,
    draw_batches,
)
from allrounder.experiments.theory.mixed_run import MixedRun, SoloRuns, match_solo_runs, solo_infima
from allrounder.experiments.theory.quantities import Theory
from allrounder.models.factory import ModelLike
from allrounder.recipe.task import Task
from allrounder.report.regret import Jumps, exchange_jumps, global_regret, learner_regret, trade_off_regret
from allrounder.rng import Rng
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.training.record import RunRecord
from allrounder.training.run import Run
from allrounder.types import NamedTensors

DEFAULT_IMAGES = 256


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
    mixed_run = MixedRun.load(run, n, model, data)
    solo_runs = match_solo_runs(run, [Run(folder) for folder in solo])
    names, events, steps = run.recipe.names, run.metrics(), mixed_run.clock.total_steps
    report = _Reporter(progress, _count_stages(mixed_run, solo_runs))
    gaps = {point: _measure_gap(mixed_run, point, report) for point in mixed_run.points}
    errors = {name: _measure_errors(mixed_run, name, report) for name in ("global", *names)}
    loss_infima, error_infima = solo_infima(solo_runs)
    error_regret = trade_off_regret(events, names, "error", error_infima)
    learner_errors = {name: errors[name] for name in names}
    return Theory(
        run=run.recipe.name or run.folder.name,
        steps=steps,
        images=len(mixed_run.y),
        classes=len(mixed_run.data.dataset.classes),
        regret=trade_off_regret(events, names, "loss", loss_infima),
        error_regret=error_regret,
        global_regret=global_regret(events, [_threat_names(task) for task in run.recipe.tasks]),
        jumps=_measure_jumps(run),
        errors=errors,
        theorem1=compute_theorem1(errors["global"], learner_errors, error_regret.per_step, steps),
        gaps=gaps,
        gradients={
            task.name: _measure_gradients(mixed_run, task, solo_runs, report) for task in run.recipe.tasks
        },
        exchanges=tuple(event for event in events if event["event"] == "exchange"),
        solo={name: str(solo_run.folder) for name, (solo_run, _) in solo_runs.items()},
    )


def _threat_names(task: Task) -> list[str]:
    return [str(threat) for threat in task.objective.threats()]


@final
class _Reporter:
    """Counts stages and reports them."""

    def __init__(self, progress: ProgressCallback, total: int):
        self.progress = progress
        self.total = total
        self.done = 0

    def advance(self, stage: str) -> None:
        """Report that a stage is done."""
        self.done += 1
        self.progress(ProgressEvent("", self.done, self.total, stage))


def _count_stages(mixed_run: MixedRun, solo_runs: SoloRuns) -> int:
    tasks, points = len(mixed_run.recipe.tasks), len(mixed_run.points)
    gradients = tasks * (points + 1 + (mixed_run.start is not None)) + len(solo_runs)
    return points + tasks + 1 + gradients


def _measure_jumps(run: Run) -> dict[str, Jumps]:
    exchange_epochs = RunRecord.read(run.folder).count_exchanges()
    losses = {name: learner_regret(run.metrics(), name).losses for name in run.recipe.names}
    return {
        name: exchange_jumps(dict(enumerate(by_epoch, start=1)), exchange_epochs)
        for name, by_epoch in losses.items()
    }


def _measure_gap(mixed_run: MixedRun, point: str, report: _Reporter) -> MixingGap:
    learners = {name: mixed_run.weights(name, point) for name in mixed_run.recipe.names}
    theta_g = mixed_run.weights("global", point)
    gap = measure_gap(mixed_run.network, learners, mixed_run.shares(point), theta_g, mixed_run.x, mixed_run.y)
    report.advance(f"mixing gap at the {point} weights")
    return gap


def _measure_errors(mixed_run: MixedRun, name: str, report: _Reporter) -> dict[str, float]:
    recipe, attack = mixed_run.recipe, mixed_run.recipe.validation.attack
    errors = task_errors(
        mixed_run.network,
        mixed_run.weights(name),
        recipe.tasks,
        attack,
        mixed_run.x,
        mixed_run.y,
        Rng(recipe.seed),
    )
    report.advance(f"test errors of {name}")
    return errors


def _measure_gradients(
    mixed_run: MixedRun, task: Task, solo_runs: SoloRuns, report: _Reporter
) -> dict[str, GradientProducts]:
    """Measure the gradients of a task at the weights that exist: initial, of its learner, global, solo."""
    rng = Rng(mixed_run.recipe.seed)
    weights: dict[str, NamedTensors] = {} if mixed_run.start is None else {"start": mixed_run.start}
    weights["learner"] = mixed_run.weights(task.name)
    weights |= {point: mixed_run.weights("global", point) for point in mixed_run.points}
    if task.name in solo_runs:
        solo, other = solo_runs[task.name]
        weights["solo"] = solo.weights(other.name)[0]
    batches = draw_batches(mixed_run.data.train, task, mixed_run.recipe.batch_size, mixed_run.network, rng)
    teachers = mixed_run.teachers(task)
    products: dict[str, GradientProducts] = {}
    for point, theta in weights.items():
        grads = batch_gradients(mixed_run.network, theta, task, batches, mixed_run.clock, rng, teachers)
        products[point] = compare_gradients(grads)
        report.advance(f"gradients of {task.name} at {point}")
    return products
