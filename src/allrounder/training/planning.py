"""Estimate what a recipe costs on this machine: time, memory, disk and communication.

A few real steps of every learner are measured in a temporary folder. The cost of an evaluation is an upper
bound: the passes of attacks that never succeed, times the measured seconds of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.attacks.losses import LOSSES
from allrounder.attacks.pgd import loss_grad
from allrounder.data.base import Data, Split
from allrounder.data.synthetic import NoiseSplit, synthetic_data
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.evaluation.evaluate import default_batch_size
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.inference.attack_view import attack_view
from allrounder.nn.amp import full_precision
from allrounder.optim import Descend
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.system.memory import measure_peak_memory
from allrounder.system.progress import NullProgress, Progress
from allrounder.training.data import add_extra, load_data
from allrounder.training.learner import Learner
from allrounder.training.run import Run
from allrounder.training.setup import ModelFactory, TrainingSetup
from allrounder.training.trainer import Trainer
from allrounder.types import Batch, Passes, Weights, device_and_dtype


@final
@dataclass(frozen=True)
class LearnerCost:
    """The passes and seconds of one step of a learner, and the bytes that it holds all the time."""

    name: str
    passes: Passes
    seconds: float
    weights: int
    momentum: int
    average: int
    memory: int
    mix_state: int
    """What the mixer keeps for it, which is also what it sends when global weights are needed."""

    @property
    def bytes(self) -> int:
        """All bytes that the learner holds."""
        return self.weights + self.momentum + self.average + self.memory + self.mix_state


@final
@dataclass(frozen=True)
class SuiteCost:
    """An upper bound on the cost of a list of probes."""

    images: int
    passes: Passes
    """Per image."""
    seconds: float


@final
@dataclass(frozen=True)
class Plan:
    """The cost of a training and of the evaluation that its recipe names."""

    steps_per_epoch: int
    epochs: int
    learners: tuple[LearnerCost, ...]
    fetch_seconds: float
    """Seconds to fetch a batch."""
    activations: int
    """Bytes by which the process grew in a step beyond what it keeps: activations, gradients, scratch."""
    validation: SuiteCost
    validations: int
    checkpoint: int
    """Bytes on disk."""
    checkpoint_seconds: float
    checkpoints: int
    exchanges: int
    evaluation: SuiteCost
    remarks: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Seconds of one step of all learners, one after the other."""
        return self.fetch_seconds + sum(learner.seconds for learner in self.learners)

    @property
    def epoch_seconds(self) -> float:
        """Seconds of the steps of one epoch."""
        return self.step_seconds * self.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Seconds of the whole training: steps, validations and checkpoints."""
        between_steps = self.validation.seconds * self.validations
        between_steps += self.checkpoint_seconds * self.checkpoints
        return self.epoch_seconds * self.epochs + between_steps

    @property
    def memory(self) -> int:
        """Bytes at the peak: what the learners hold, and what a step needs on top."""
        return sum(learner.bytes for learner in self.learners) + self.activations

    @property
    def comm_bytes(self) -> int:
        """Bytes sent for one exchange or validation if every learner has its own process."""
        return sum(learner.mix_state for learner in self.learners)


def plan(
    recipe: Recipe,
    *,
    steps: int = 3,
    model: ModelFactory | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Measure `steps` steps of a recipe on this machine, after one warm-up step; no files remain.

    If the recipe's data is missing, noise of the same shape replaces it, and the remarks mention it.
    """
    if steps < 1:
        raise ValueError(f"steps: got {steps}, expected 1 or more")
    if recipe.pipeline is not None:
        names = ", ".join(recipe.stage_recipes())
        raise ValueError(
            f"{recipe.name}: got a pipeline of several trainings ({names}), expected one training; plan each "
            "of recipe.stage_recipes()"
        )
    world = world or World.from_env()
    remarks = recipe.compute.check_device(world.device)
    data, data_remarks = _load_images(recipe, data)
    # The initial weights do not change the cost, and the runs that they come from may be missing.
    tasks = tuple(
        replace(task, update=Descend()) if task.update.num_init_runs else task for task in recipe.tasks
    )
    recipe = replace(recipe, init=Random(), tasks=tasks)
    with TemporaryDirectory(prefix="allrounder-plan-") as folder:
        run = Run.open_or_create(Path(folder) / "run", recipe, resume=False)
        trainer = Trainer(TrainingSetup.build(recipe, run, model, data, world))
        measured = _measure(trainer, steps, progress or NullProgress())
    return replace(measured, remarks=(*remarks, *data_remarks))


def _load_images(recipe: Recipe, data: Data | None) -> tuple[Data, list[str]]:
    """Return the images and remarks on those that noise replaces."""
    remarks: list[str] = []
    if data is None:
        try:
            data = load_data(recipe)
        except RecipeError as error:
            data = synthetic_data(recipe.data)
            if data is None:
                raise
            remarks.append(f"measured on noise of shape {data.shape}, because {error}")
    try:
        return add_extra(recipe, data), remarks
    except RecipeError as error:
        if recipe.extra is None:
            raise
        extra = NoiseSplit(len(data.train), len(data.classes), data.shape)
        return replace(data, extra=extra), [*remarks, f"extra images are noise, because {error}"]


def _measure(trainer: Trainer, steps: int, progress: Progress) -> Plan:
    clock = trainer.clock
    recipe = trainer.recipe
    selection = trainer.selection
    dataset = trainer.data.dataset
    fetch_seconds: list[float] = []
    step_seconds = {learner.task.name: list[float]() for learner in trainer.learners}
    progress.begin(steps + 3, 0)
    with measure_peak_memory(trainer.world.device) as peak:
        for number in range(steps + 1):
            t = number % clock.total_steps + 1
            seconds, batch = _timed(lambda t=t: trainer.batches.at(clock.epoch(t), clock.step_in_epoch(t)))
            fetch_seconds.append(seconds)
            for learner in trainer.learners:
                seconds, _ = _timed(lambda one=learner, b=batch, t=t: _step(trainer, one, b, t))
                step_seconds[learner.task.name].append(seconds)
            progress.step(number + 1)
    # The first step warms up: it allocates memory, traces the network and creates the momentum.
    learners = tuple(
        _learner_cost(trainer, learner, median(step_seconds[learner.task.name][1:]))
        for learner in trainer.learners
    )
    checkpoint_seconds, _ = _timed(lambda: trainer.save(1))
    progress.step(steps + 2)
    pass_times = PassTimes.measure(trainer.scratch_model, dataset.test, steps)
    progress.step(steps + 3)
    num_classes = len(dataset.classes)
    num_validated = 0
    validations = 0
    if selection.split is not None:
        num_validated = len(selection.split) + len(selection.train_slice or ())
        validations = _count_events(clock.total_steps, selection.settings.every.to_steps(clock))
    return Plan(
        steps_per_epoch=clock.steps_per_epoch,
        epochs=clock.epochs,
        learners=learners,
        fetch_seconds=median(fetch_seconds[1:]),
        activations=max(0, peak[0] - sum(cost.momentum for cost in learners)),
        validation=pass_times.suite_cost(selection.probes, num_validated, num_classes),
        validations=validations,
        checkpoint=sum(path.stat().st_size for path in _files(trainer.run.latest_checkpoint())),
        checkpoint_seconds=checkpoint_seconds,
        checkpoints=_count_events(clock.total_steps, recipe.checkpoint.to_steps(clock)),
        exchanges=sum(trainer.mix.exchange_due(t, clock) for t in range(1, clock.total_steps)),
        evaluation=pass_times.suite_cost(recipe.probes, len(dataset.test), num_classes),
    )


def _step(trainer: Trainer, learner: Learner, batch: Batch, t: int) -> None:
    learner.step(batch, t)
    trainer.mixer.update(learner.task.name, learner.averaged_weights(), t)
    _synchronize(learner.device)


def _learner_cost(trainer: Trainer, learner: Learner, seconds: float) -> LearnerCost:
    moments = [cast(dict[str, Any], entry).values() for entry in learner.optimizer.state.values()]
    return LearnerCost(
        name=learner.task.name,
        passes=learner.task.passes(),
        seconds=seconds,
        weights=_bytes(learner.params),
        momentum=sum(t.nbytes for entries in moments for t in entries if isinstance(t, Tensor)),
        average=_bytes(learner.average or {}),
        memory=_bytes(learner.memory),
        mix_state=_bytes(trainer.mixer.state_dict(learner.task.name)),
    )


@final
@dataclass(frozen=True)
class PassTimes:
    """The seconds of a forward and a backward pass of one batch of an evaluation."""

    batch_size: int
    forward: float
    backward: float

    @classmethod
    def measure(cls, model: nn.Module, split: Split, times: int) -> PassTimes:
        """Return the median of `times` passes, after one warm-up pass."""
        batch_size = default_batch_size(model, split)
        device, dtype = device_and_dtype(model)
        rows = torch.arange(batch_size) % len(split)
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)
        forwards: list[float] = []
        pairs: list[float] = []
        with torch.no_grad(), full_precision(device), attack_view(model, x, "eval") as view:
            for _ in range(times + 1):
                forwards.append(_timed(lambda: (view(x), _synchronize(device)))[0])
                pairs.append(
                    _timed(lambda: (loss_grad(view, x, y, LOSSES["ce"], None), _synchronize(device)))[0]
                )
        forward = median(forwards[1:])
        return cls(batch_size, forward, max(0.0, median(pairs[1:]) - forward))

    def suite_cost(self, probes: Sequence[Probe], images: int, classes: int) -> SuiteCost:
        """Return the cost of probes on `images` images; a stage that several probes share counts once."""
        attacks = {stage.key(): stage.attack for probe in probes for stage in probe_stages(probe)}
        passes = sum((attack.evaluation_passes(classes) for attack in attacks.values()), Passes(forwards=1))
        num_batches = -(-images // self.batch_size)
        batch_seconds = passes.forwards * self.forward + passes.backwards * self.backward
        return SuiteCost(images, passes, num_batches * batch_seconds)


def _count_events(total: int, every: int) -> int:
    """Return how often something happens that is due every `every` steps and at the end."""
    return -(-total // max(every, 1))


def _bytes(weights: Weights) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def _files(folder: Path | None) -> Iterable[Path]:
    return () if folder is None else (path for path in folder.rglob("*") if path.is_file())


def _synchronize(device: torch.device) -> None:
    """Wait for the work that was queued on a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result
