"""Estimate what a recipe costs on this machine: time, memory, disk and communication.

The first estimate takes seconds: the passes of a step, times the measured seconds of a pass. Then a few real
steps of every learner are measured in a temporary folder. The cost of an evaluation is an upper bound: the
passes of attacks that never succeed, times the measured seconds of a pass.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast, final

from torch import Tensor

from allrounder.data.augment.base import Size
from allrounder.data.base import Data
from allrounder.data.synthetic import NoiseSplit, synthetic_data
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.models.factory import ModelFactory
from allrounder.nn.mixing import Chosen
from allrounder.nn.state import weights_of
from allrounder.optim import Descend
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.system.memory import measure_peak_memory
from allrounder.system.progress import NullProgress, Progress
from allrounder.training.data import add_extra, load_data
from allrounder.training.disk_space import count_needed_bytes
from allrounder.training.learner import Learner
from allrounder.training.pass_times import PassTimes, SuiteCost, measure_time
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from allrounder.types import Batch, Passes

DEFAULT_STEPS = 3
SLOW_STEP = 10.0
"""Seconds of a step above which one step, without a warm-up step before it, is enough by default."""


@final
@dataclass(frozen=True)
class LearnerCost:
    """The passes and seconds of one step of a learner, and the bytes that it holds all the time."""

    name: str
    passes: Passes
    seconds: float
    held: Mapping[str, int]
    """Bytes of its weights, momentum, average, memory, and of its mix state: what the mixer keeps for it, and
    what it sends when global weights are needed; of its teachers, if any. Momentum exists only after a
    step."""
    epoch_end_seconds: float = 0.0
    """An upper bound on the additional seconds of the last step of an epoch."""
    measured: bool = True
    """Whether steps were measured; if not, the seconds are an estimate from the passes."""

    @property
    def bytes(self) -> int:
        """All bytes that the learner holds."""
        return sum(self.held.values())


@final
@dataclass(frozen=True)
class Plan:
    """The cost of a training and of the evaluation that its recipe names."""

    steps_per_epoch: int
    epochs: int
    learners: tuple[LearnerCost, ...]
    fetch_seconds: float
    """Seconds to fetch a batch."""
    activations: int | None
    """Bytes by which the process grew in a step beyond what it keeps: activations, gradients, scratch. None
    before all steps are measured."""
    validation: SuiteCost
    validations: int
    checkpoint: int | None
    """Bytes on disk; None before a checkpoint is written."""
    checkpoint_seconds: float
    checkpoints: int
    exchanges: int
    evaluation: SuiteCost
    pass_times: PassTimes
    remarks: tuple[str, ...] = ()
    choice: SuiteCost | None = None
    """An upper bound on the cost of choosing shares at one exchange, if the mix rule does that."""
    refreshes: int = 0
    """The number of steps after which teachers get new weights."""
    disk: int = 0
    """A lower bound on the bytes of the run folder at its largest, without its log."""

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
        """Seconds of the whole training: steps, validations, checkpoints and choices of shares."""
        validations = self.validation.seconds * self.validations
        choices = 0.0 if self.choice is None else self.choice.seconds * self.exchanges
        checkpoints = self.checkpoint_seconds * self.checkpoints
        return self.epoch_seconds * self.epochs + validations + checkpoints + choices

    @property
    def memory(self) -> int | None:
        """Bytes at the peak: what the learners hold, and what a step needs on top; None if not measured."""
        if self.activations is None:
            return None
        return sum(learner.bytes for learner in self.learners) + self.activations

    @property
    def comm_bytes(self) -> int:
        """Bytes of the partial sums that one exchange or validation sends if every learner has its own
        process."""
        return sum(learner.held["mix state"] for learner in self.learners)


def plan(
    recipe: Recipe,
    *,
    steps: int | None = None,
    model: ModelFactory | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the last plan of `refine_plan`."""
    with closing(
        refine_plan(recipe, steps=steps, model=model, data=data, world=world, progress=progress)
    ) as plans:
        *_, last = plans
    return last


def refine_plan(
    recipe: Recipe,
    *,
    steps: int | None = None,
    model: ModelFactory | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Generator[Plan]:
    """Yield an estimate from counted passes after a few seconds, a better plan after every measured step of a
    learner, and at last a complete one.

    `steps` steps are measured, after one warm-up step; by default three, or a single one without a warm-up
    if it takes longer than SLOW_STEP. No files remain. If the recipe's data is missing, noise of the same
    shape replaces it, and the remarks mention it.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps: got {steps}, expected 1 or more")
    if recipe.pipeline is not None:
        names = ", ".join(recipe.stage_recipes())
        message = f"got a pipeline of several trainings ({names}), expected one training; plan each of "
        raise ValueError(f"{recipe.name}: {message}recipe.stage_recipes()")
    world = world or World.from_env()
    remarks = recipe.compute.check_device(world.device)
    data, data_remarks = load_images_or_noise(recipe, data)
    # The initial weights do not change the cost, and the runs that they come from may be missing.
    tasks = [replace(task, update=Descend()) if task.update.num_init_runs else task for task in recipe.tasks]
    recipe = replace(recipe, init=Random(), tasks=tuple(tasks))
    with TemporaryDirectory(prefix="allrounder-plan-") as folder:
        run = Run.open_or_create(Path(folder) / "run", recipe, resume=False)
        trainer = Trainer(recipe, run, model, data, world)
        measurement = _Measurement(trainer, (*remarks, *data_remarks))
        yield from measurement.refine(steps, progress or NullProgress())


def load_images_or_noise(recipe: Recipe, data: Data | None) -> tuple[Data, list[str]]:
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


@final
class _Measurement:
    """Measures steps of a trainer, and makes a plan of what is known."""

    def __init__(self, trainer: Trainer, remarks: tuple[str, ...]):
        """Measure the passes; no step is taken."""
        self.trainer = trainer
        self.device = trainer.world.device
        self.pass_times = PassTimes.measure(trainer.scratch_model, trainer.data.dataset.test)
        self.fetch_seconds: list[float] = []
        self.phases = _find_phases(trainer)
        names = [learner.task.name for learner in trainer.learners]
        self.step_seconds = [{name: list[float]() for name in names} for _ in self.phases]
        """Measured seconds of the steps in every phase, by learner."""
        self.known = self._estimate(remarks)

    def refine(self, steps: int | None, progress: Progress) -> Iterator[Plan]:
        """Yield the estimate, a plan after every step of a learner, and the complete plan."""
        yield self.known
        if steps is not None or self.known.step_seconds <= SLOW_STEP:
            num_steps = 1 + (steps or DEFAULT_STEPS)  # the first one warms up
        else:
            num_steps = 1
        done = 0
        progress.begin(len(self.phases) * num_steps * len(self.trainer.learners) + 1, done)
        with measure_peak_memory(self.device) as peak:
            for phase, number in product(range(len(self.phases)), range(num_steps)):
                for _ in self._take_step(phase, number):
                    done += 1
                    progress.step(done)
                    yield self._refresh()
        self._refresh()
        momentum = sum(cost.held["momentum"] for cost in self.known.learners)
        seconds, _ = measure_time(self.device, self.trainer.save, 1)
        checkpoint = self.trainer.run.latest_checkpoint()
        progress.step(done + 1)
        yield replace(
            self.known,
            activations=max(0, peak[0] - momentum),
            checkpoint=sum(path.stat().st_size for path in checkpoint.iterdir()) if checkpoint else 0,
            checkpoint_seconds=seconds,
            disk=count_needed_bytes(self.trainer),  # now with momentum
        )

    def _take_step(self, phase: int, number: int) -> Iterator[None]:
        """Take one step of every learner in the first epoch of a phase; yield after each."""
        trainer = self.trainer
        t = self.phases[phase].first_step + number % trainer.clock.steps_per_epoch

        def step(learner: Learner, batch: Batch) -> None:
            learner.step(batch, t)
            trainer.mixer.update(learner.task.name, learner.averaged_weights(), t)

        seconds, batches = measure_time(self.device, trainer.fetch_batches, t)
        self.fetch_seconds.append(seconds)
        for learner in trainer.learners:
            seconds, _ = measure_time(self.device, step, learner, batches[learner.augment_key])
            self.step_seconds[phase][learner.task.name].append(seconds)
            yield

    def _refresh(self) -> Plan:
        """Update the plan by the steps that were measured so far."""
        learners = tuple(self._learner_cost(learner) for learner in self.trainer.learners)
        self.known = replace(self.known, learners=learners, fetch_seconds=_typical(self.fetch_seconds))
        return self.known

    def _estimate(self, remarks: tuple[str, ...]) -> Plan:
        trainer, clock, times = self.trainer, self.trainer.clock, self.pass_times
        selection, dataset = trainer.selection, trainer.data.dataset
        num_validated = validations = 0
        if selection.split is not None:
            num_validated = len(selection.split) + len(selection.train_slice or ())
            validations = _count_events(clock.total_steps, selection.settings.every.to_steps(clock))
        return Plan(
            steps_per_epoch=clock.steps_per_epoch,
            epochs=clock.epochs,
            learners=tuple(self._learner_cost(learner) for learner in trainer.learners),
            fetch_seconds=0.0,
            activations=None,
            validation=times.suite_cost(selection.probes, num_validated, len(dataset.classes)),
            validations=validations,
            checkpoint=None,
            checkpoint_seconds=0.0,
            checkpoints=_count_events(clock.total_steps, trainer.recipe.checkpoint.to_steps(clock)),
            exchanges=trainer.mix.count_exchanges(clock),
            refreshes=trainer.teaching.count_refreshes(),
            evaluation=times.suite_cost(trainer.recipe.probes, len(dataset.test), len(dataset.classes)),
            pass_times=times,
            remarks=remarks,
            choice=self._choice_cost(),
            disk=count_needed_bytes(trainer),
        )

    def _choice_cost(self) -> SuiteCost | None:
        trainer, selection = self.trainer, self.trainer.selection
        rule = trainer.mix.rule
        if not isinstance(rule, Chosen) or selection.split is None:
            return None
        count = rule.num_networks(len(trainer.recipe.names), weights_of(trainer.scratch_model))
        one = self.pass_times.suite_cost(selection.scored_probes, len(selection.split), selection.num_classes)
        return SuiteCost(one.images, one.passes * count, one.seconds * count)

    def _learner_cost(self, learner: Learner) -> LearnerCost:
        task = learner.task
        batch_size = task.batch_size or self.trainer.recipe.batch_size
        moments = [cast(dict[str, Any], entry).values() for entry in learner.optimizer.state.values()]
        tensors = {
            "weights": learner.params.values(),
            "momentum": [t for entries in moments for t in entries if isinstance(t, Tensor)],
            "average": (learner.average or {}).values(),
            "memory": learner.memory.values(),
            "mix state": self.trainer.mixer.state_dict(task.name).values(),
        }
        if learner.teachers:
            tensors["teachers"] = learner.teacher_weights().values()
        held = {name: sum(tensor.nbytes for tensor in group) for name, group in tensors.items()}
        at_epoch_end = self.pass_times.seconds(task.update.epoch_passes(task.objective), batch_size)
        measured = [seconds[task.name] for seconds in self.step_seconds]
        seconds = 0.0
        for phase, times in zip(self.phases, measured, strict=True):
            passes = task.update.passes(learner.objective_at(phase.first_step))
            estimate = self.pass_times.seconds(passes, batch_size) * phase.pixels[task.name]
            seconds += phase.share * (_typical(times) if times else estimate)
        passes = task.mean_passes(self.trainer.clock.epochs)
        return LearnerCost(task.name, passes, seconds, held, at_epoch_end, all(measured))


@final
@dataclass(frozen=True)
class _Phase:
    """A part of a training in which image sizes and objectives do not change."""

    first_step: int
    share: float
    """Its share of all steps."""
    pixels: Mapping[str, float]
    """Pixels of the images of each learner, relative to those of the dataset."""


def _find_phases(trainer: Trainer) -> list[_Phase]:
    """Return the phases of a training; there is one unless an augmentation changes the size of images, or an
    objective its attack."""
    clock, (height, width) = trainer.clock, trainer.image_size
    epoch_starts = range(1, clock.total_steps + 1, clock.steps_per_epoch)
    changes = {last + 1 for learner in trainer.learners for last, _ in learner.phases}
    bounds = [*sorted({*epoch_starts, *changes}), clock.total_steps + 1]
    spans: dict[tuple[tuple[Size, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for t, end in pairwise(bounds):
        augments = (learner.task.augment for learner in trainer.learners)
        sizes = tuple(augment.crop_size(trainer.image_size, t, clock) for augment in augments)
        objectives = tuple(id(learner.objective_at(t)) for learner in trainer.learners)
        spans.setdefault((sizes, objectives), []).append((t, end - t))
    names = [learner.task.name for learner in trainer.learners]
    return [
        _Phase(
            first_step=parts[0][0],
            share=sum(length for _, length in parts) / clock.total_steps,
            pixels={name: h * w / (height * width) for name, (h, w) in zip(names, sizes, strict=True)},
        )
        for (sizes, _), parts in spans.items()
    ]


def _typical(seconds: list[float]) -> float:
    """Return the median of measured seconds. The first step allocates memory, traces the network and creates
    the momentum, so it is left out if there are others."""
    return median(seconds[1:] or seconds)


def _count_events(total: int, every: int) -> int:
    """Return how often something happens that is due every `every` steps and at the end."""
    return -(-total // max(every, 1))
