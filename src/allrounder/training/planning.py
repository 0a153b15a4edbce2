"""What a recipe will cost here, from a few steps of it: time, memory, disk and wire.

Steps are the real ones of every learner, in a folder that is gone after. What an evaluation takes is counted
in passes at most, as if no image fell early, times the seconds of a pass.
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

from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.base import Attack
from allrounder.attacks.fab import Fab
from allrounder.attacks.losses import LOSSES
from allrounder.attacks.pgd import gradient
from allrounder.attacks.search.base import Search
from allrounder.data.base import Data, Split
from allrounder.data.synthetic import Noise, stand_in
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.evaluation.evaluate import lane_for
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import key_of
from allrounder.inference.attack_view import lend
from allrounder.nn.state import Weights
from allrounder.optim import Descend
from allrounder.recipe.compute import plain
from allrounder.recipe.init import Random
from allrounder.recipe.recipe import Recipe
from allrounder.system.memory import growth
from allrounder.system.progress import Progress, Silent
from allrounder.training.costs import LearnerCost, Plan, SuiteCost
from allrounder.training.learner import Learner
from allrounder.training.run import Run
from allrounder.training.training import Training
from allrounder.types import Passes, device_of


def plan(
    recipe: Recipe,
    *,
    steps: int = 3,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Measure some steps of a recipe on this machine, after one that warms up; nothing is left behind.

    Where its data is not here, noise of the same shape takes its place, and the remarks say so.
    """
    if steps < 1:
        raise ValueError(f"steps: got {steps}, expected 1 or more")
    if recipe.program is not None:
        names = ", ".join(recipe.trainings())
        raise ValueError(f"{recipe.name}: has several trainings ({names}); plan each of recipe.trainings()")
    world, progress = world or World.from_env(), progress or Silent()
    remarks = recipe.compute.check(world.device)
    if recipe.compute.compile:
        remarks = [*remarks, "compiling is part of no step, but its memory is in that of activations"]
    data, said = _images(recipe, data)
    # Where weights start from changes no cost, and those runs need not be here.
    plain = tuple(replace(task, update=Descend()) if task.update.members else task for task in recipe.tasks)
    recipe = replace(recipe, init=Random(), task=plain)
    with TemporaryDirectory(prefix="allrounder-plan-") as folder:
        run = Run.begin(Path(folder) / "run", recipe, resume=False)
        training = Training(recipe, run, model, data, world)
        measured = _measured(training, steps, progress)
    return replace(measured, remarks=(*remarks, *said))


def _images(recipe: Recipe, data: Data | None) -> tuple[Data, list[str]]:
    said: list[str] = []
    if data is None:
        try:
            data = recipe.read_data()
        except RecipeError as error:
            data = stand_in(recipe.data)
            if data is None:
                raise
            said.append(f"measured on noise of shape {data.shape}, because {error}")
    try:
        return recipe.with_extra(data), said
    except RecipeError as error:
        if recipe.extra is None:
            raise
        extra = Noise(len(data.train), len(data.classes), data.shape)
        return replace(data, extra=extra), [*said, f"extra images are noise, because {error}"]


def _measured(training: Training, steps: int, progress: Progress) -> Plan:
    clock, recipe = training.clock, training.recipe
    fetches, taken = list[float](), {learner.task.name: list[float]() for learner in training.learners}
    progress.begin(steps + 3, 0)
    with growth(training.world.device) as grown:
        for number in range(steps + 1):
            t = number % clock.total + 1
            epoch = clock.epoch(t)
            seconds, batch = _timed(lambda t=t, e=epoch: training.batches.at(e, t - (e - 1) * clock.steps))
            fetches.append(seconds)
            for learner in training.learners:
                seconds, _ = _timed(lambda who=learner, b=batch, t=t: _step(training, who, b, t))
                taken[learner.task.name].append(seconds)
            progress.step(number + 1)
    # The first one warms up: it allocates, traces and perhaps compiles the network, and makes the momentum.
    learners = tuple(_cost(training, who, median(taken[who.task.name][1:])) for who in training.learners)
    saving, _ = _timed(lambda: training.save(1))
    progress.step(steps + 2)
    selector = training.selector
    seen = 0 if selector.split is None else len(selector.split) + len(selector.slice or ())
    speed = Speed.measure(training.scratch, training.data.test, steps)
    progress.step(steps + 3)
    classes = len(training.data.classes)
    return Plan(
        steps=clock.steps,
        epochs=clock.epochs,
        learners=learners,
        fetch=median(fetches[1:]),
        activations=max(0, grown[0] - sum(cost.momentum for cost in learners)),
        validation=speed.suite(selector.probes, seen, classes),
        validations=0 if selector.split is None else _times(clock.total, selector.rule.every.steps(clock)),
        checkpoint=sum(path.stat().st_size for path in _files(training.run.latest())),
        checkpoint_seconds=saving,
        checkpoints=_times(clock.total, recipe.checkpoint.steps(clock)),
        exchanges=sum(recipe.mixing.due(t, clock) for t in range(1, clock.total)),
        evaluation=speed.suite(recipe.probes, len(training.data.test), classes),
    )


def _step(training: Training, learner: Learner, batch: Any, t: int) -> None:
    learner.step(batch, t)
    training.mixer.observe(learner.task.name, learner.weights(), t)
    _finish(learner.device)


def _cost(training: Training, learner: Learner, seconds: float) -> LearnerCost:
    moments = [cast(dict[str, Any], entry).values() for entry in learner.optimizer.state.values()]
    return LearnerCost(
        name=learner.task.name,
        passes=learner.task.passes(),
        seconds=seconds,
        weights=_bytes(learner.live),
        momentum=sum(t.nbytes for entries in moments for t in entries if isinstance(t, Tensor)),
        average=_bytes(learner.average or {}),
        memory=_bytes(learner.memory),
        part=_bytes(training.mixer.parts[learner.task.name]),
    )


@final
@dataclass(frozen=True)
class Speed:
    """Seconds of a forward and a backward pass of an evaluation's width."""

    width: int
    forward: float
    backward: float

    @classmethod
    def measure(cls, model: nn.Module, split: Split, times: int) -> Speed:
        """The median of some passes, after one that warms up."""
        width, (device, dtype) = lane_for(model, split), device_of(model)
        rows = torch.arange(width) % len(split)
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)
        forwards, pairs = list[float](), list[float]()
        with torch.no_grad(), plain(device), lend(model, x, "eval") as lent:
            for _ in range(times + 1):
                forwards.append(_timed(lambda: (lent(x), _finish(device)))[0])
                pairs.append(_timed(lambda: (gradient(lent, x, y, LOSSES["ce"], None), _finish(device)))[0])
        forward = median(forwards[1:])
        return cls(width, forward, max(0.0, median(pairs[1:]) - forward))

    def suite(self, probes: Sequence[Probe], images: int, classes: int) -> SuiteCost:
        """Probes on so many images; a stage that several share is run once."""
        stages = {
            key_of(probe, attack, stage): attack
            for probe in probes
            for stage, attack in enumerate(stages_of(probe.attack, probe.threat))
        }
        passes = Passes(forwards=1)
        for attack in stages.values():
            passes = passes + at_most(attack, classes)
        lanes = -(-images // self.width)
        spent = passes.forwards * self.forward + passes.backwards * self.backward
        return SuiteCost(images, passes, lanes * spent)


def at_most(attack: Attack, classes: int) -> Passes:
    """Passes of an attack on an image that does not fall, with the one that gives the verdict."""
    if not isinstance(attack, Search):
        return attack.passes() + Passes(forwards=1)
    slopes = classes - 1 if isinstance(attack, Fab) and attack.targets == 0 else 1
    cycles = attack.rounds(classes) * attack.questions() // len(attack.cycle)
    asked = [Passes(attack.repeats(), attack.repeats() * slopes) if g else Passes(1) for g in attack.cycle]
    return sum(asked, Passes()) * cycles + Passes(forwards=1)


def _times(total: int, every: int) -> int:
    """How often something happens every so many steps, and at the end."""
    return -(-total // max(every, 1))


def _bytes(weights: Weights) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def _files(folder: Path | None) -> Iterable[Path]:
    return () if folder is None else (path for path in folder.rglob("*") if path.is_file())


def _finish(device: torch.device) -> None:
    """Wait for what was asked of a device that works on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = call()
    return time.perf_counter() - begun, found
