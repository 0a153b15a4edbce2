"""Estimate what a recipe costs on this machine: time, memory, disk and communication.

A few real steps of every learner are measured in a temporary folder. The cost of an evaluation is an upper
bound: the passes of attacks that never succeed, times the measured seconds of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast, final

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
from allrounder.models.factory import ModelFactory
from allrounder.nn.amp import full_precision
from allrounder.optim import Descend
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.system.memory import measure_peak_memory
from allrounder.system.progress import NullProgress, Progress
from allrounder.training.data import add_extra, load_data
from allrounder.training.learner import Learner
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from allrounder.types import Batch, Passes, device_and_dtype

Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class LearnerCost:
    """The passes and seconds of one step of a learner, and the bytes that it holds all the time."""

    name: str
    passes: Passes
    seconds: float
    held: Mapping[str, int]
    """Bytes of its weights, momentum, average, memory, and of its mix state: what the mixer keeps for it, and
    what it sends when global weights are needed."""
    epoch_end_seconds: float = 0.0
    """An upper bound on the additional seconds of the last step of an epoch."""

    @property
    def bytes(self) -> int:
        """All bytes that the learner holds."""
        return sum(self.held.values())


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
        at_end = sum(learner.epoch_end_seconds for learner in self.learners)
        return self.step_seconds * self.steps_per_epoch + at_end

    @property
    def seconds(self) -> float:
        """Seconds of the whole training: steps, validations and checkpoints."""
        validations = self.validation.seconds * self.validations
        return self.epoch_seconds * self.epochs + validations + self.checkpoint_seconds * self.checkpoints

    @property
    def memory(self) -> int:
        """Bytes at the peak: what the learners hold, and what a step needs on top."""
        return sum(learner.bytes for learner in self.learners) + self.activations

    @property
    def comm_bytes(self) -> int:
        """Bytes sent for one exchange or validation if every learner has its own process."""
        return sum(learner.held["mix state"] for learner in self.learners)


def plan(
    recipe: Recipe,
    *,
    steps: int = 3,
    model: ModelFactory | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Measure `steps` steps of a recipe on this machine, after one warm-up step; no files remain. If the
    recipe's data is missing, noise of the same shape replaces it, and the remarks mention it."""
    if steps < 1:
        raise ValueError(f"steps: got {steps}, expected 1 or more")
    if recipe.pipeline is not None:
        names = ", ".join(recipe.stage_recipes())
        message = f"got a pipeline of several trainings ({names}), expected one training; plan each of "
        raise ValueError(f"{recipe.name}: {message}recipe.stage_recipes()")
    world = world or World.from_env()
    remarks = recipe.compute.check_device(world.device)
    data, data_remarks = _load_images(recipe, data)
    # The initial weights do not change the cost, and the runs that they come from may be missing.
    tasks = [replace(task, update=Descend()) if task.update.num_init_runs else task for task in recipe.tasks]
    recipe = replace(recipe, init=Random(), tasks=tuple(tasks))
    with TemporaryDirectory(prefix="allrounder-plan-") as folder:
        run = Run.open_or_create(Path(folder) / "run", recipe, resume=False)
        trainer = Trainer(recipe, run, model, data, world)
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
        noise = NoiseSplit(len(data.train), len(data.classes), data.shape)
        return replace(data, extra=noise), [*remarks, f"extra images are noise, because {error}"]


def _measure(trainer: Trainer, steps: int, progress: Progress) -> Plan:
    clock, recipe, device = trainer.clock, trainer.recipe, trainer.world.device
    selection, dataset = trainer.selection, trainer.data.dataset
    fetch_seconds: list[float] = []
    step_seconds = {learner.task.name: list[float]() for learner in trainer.learners}

    def take_step(learner: Learner, batch: Batch, t: int) -> None:
        learner.step(batch, t)
        trainer.mixer.update(learner.task.name, learner.averaged_weights(), t)

    progress.begin(steps + 3, 0)
    with measure_peak_memory(device) as peak:
        for number in range(steps + 1):
            t = number % clock.total_steps + 1
            seconds, batch = _measure_time(device, trainer.batches.at, clock.epoch(t), clock.step_in_epoch(t))
            fetch_seconds.append(seconds)
            for learner in trainer.learners:
                seconds, _ = _measure_time(device, take_step, learner, batch, t)
                step_seconds[learner.task.name].append(seconds)
            progress.step(number + 1)
    checkpoint_seconds, _ = _measure_time(device, trainer.save, 1)
    checkpoint = trainer.run.latest_checkpoint()
    progress.step(steps + 2)
    pass_times = PassTimes.measure(trainer.scratch_model, dataset.test, steps)
    progress.step(steps + 3)
    # The first step warms up: it allocates memory, traces the network and creates the momentum.
    seconds = {name: median(times[1:]) for name, times in step_seconds.items()}
    learners = tuple(_learner_cost(trainer, learner, seconds, pass_times) for learner in trainer.learners)
    num_validated = validations = 0
    if selection.split is not None:
        num_validated = len(selection.split) + len(selection.train_slice or ())
        validations = _count_events(clock.total_steps, selection.settings.every.to_steps(clock))
    return Plan(
        steps_per_epoch=clock.steps_per_epoch,
        epochs=clock.epochs,
        learners=learners,
        fetch_seconds=median(fetch_seconds[1:]),
        activations=max(0, peak[0] - sum(cost.held["momentum"] for cost in learners)),
        validation=pass_times.suite_cost(selection.probes, num_validated, len(dataset.classes)),
        validations=validations,
        checkpoint=sum(path.stat().st_size for path in checkpoint.iterdir()) if checkpoint else 0,
        checkpoint_seconds=checkpoint_seconds,
        checkpoints=_count_events(clock.total_steps, recipe.checkpoint.to_steps(clock)),
        exchanges=sum(trainer.mix.exchange_due(t, clock) for t in range(1, clock.total_steps)),
        evaluation=pass_times.suite_cost(recipe.probes, len(dataset.test), len(dataset.classes)),
    )


def _learner_cost(
    trainer: Trainer, learner: Learner, seconds: Mapping[str, float], pass_times: PassTimes
) -> LearnerCost:
    task = learner.task
    moments = [cast(dict[str, Any], entry).values() for entry in learner.optimizer.state.values()]
    tensors = {
        "weights": learner.params.values(),
        "momentum": [t for entries in moments for t in entries if isinstance(t, Tensor)],
        "average": (learner.average or {}).values(),
        "memory": learner.memory.values(),
        "mix state": trainer.mixer.state_dict(task.name).values(),
    }
    held = {name: sum(tensor.nbytes for tensor in group) for name, group in tensors.items()}
    epoch_passes = task.update.epoch_passes(task.objective)
    at_epoch_end = pass_times.seconds(epoch_passes, trainer.recipe.batch_size)
    return LearnerCost(task.name, task.passes(), seconds[task.name], held, at_epoch_end)


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
                forwards.append(_measure_time(device, view, x)[0])
                pairs.append(_measure_time(device, loss_grad, view, x, y, LOSSES["ce"], None)[0])
        forward = median(forwards[1:])
        return cls(batch_size, forward, max(0.0, median(pairs[1:]) - forward))

    def seconds(self, passes: Passes, images: int) -> float:
        """Return the seconds of passes over `images` images, in full batches."""
        num_batches = -(-images // self.batch_size)
        return num_batches * (passes.forwards * self.forward + passes.backwards * self.backward)

    def suite_cost(self, probes: Sequence[Probe], images: int, classes: int) -> SuiteCost:
        """Return the cost of probes on `images` images; a stage that several probes share counts once."""
        attacks = {stage.key(): stage.attack for probe in probes for stage in probe_stages(probe)}
        passes = sum((attack.evaluation_passes(classes) for attack in attacks.values()), Passes(forwards=1))
        return SuiteCost(images, passes, self.seconds(passes, images))


def _count_events(total: int, every: int) -> int:
    """Return how often something happens that is due every `every` steps and at the end."""
    return -(-total // max(every, 1))


def _measure_time(device: torch.device, function: Callable[..., Result], *args: Any) -> tuple[float, Result]:
    """Call a function and wait for the device; return the seconds that it takes and its result."""
    start = time.perf_counter()
    result = function(*args)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result
