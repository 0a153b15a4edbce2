"""The loop of Algorithms 1 and 2 of Generalist++, for any number of learners, serial or (later) spread
out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.advice import advice
from allrounder.data import Given as GivenData
from allrounder.data.base import Batches, Data
from allrounder.errors import Interrupted
from allrounder.learner import Learner
from allrounder.mixing import Mixer
from allrounder.models import Given as GivenModel
from allrounder.progress import Progress, Silent
from allrounder.recalibration import recalibrate_
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.runs import Run
from allrounder.schedules import Clock
from allrounder.selection import Selector, some_images, split_off
from allrounder.starting import starting_network
from allrounder.stopping import stop_on_signals
from allrounder.storage import read_tensors
from allrounder.types import Loss, device_of
from allrounder.weights import Weights, copy_, snapshot, weights_of
from allrounder.world import Placement, World

RECALIBRATION_IMAGES = 2048


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train a recipe into a run folder, or go on with the one that is there.

    `model` and `data` replace the recipe's; they are recorded by name and must be given again to resume.
    """
    progress = progress or Silent()
    recipe = _with_given(recipe, model, data)
    run = Run.begin(Path(out), recipe, resume=resume)
    if run.finished:
        progress.say(f"{run.folder}: already finished")
        return run
    with run.locked(), stop_on_signals() as stop:
        training = Training(recipe, run, model, data or recipe.data.load(), world or World.from_env())
        for line in [*run.record_session(training.world.device), *advice(recipe, training.clock)]:
            progress.say(line)
        first = training.resume() + 1
        progress.begin(training.clock.total, first - 1)
        for t in range(first, training.clock.total + 1):
            training.step(t)
            progress.step(t)
            if stop.signal is not None:
                training.save(t)
                raise Interrupted(f"{run.folder}: {stop.signal} after step {t}; continue with --resume")
        training.finish()
    return run


@final
class Training:
    """The machines of one run: learners, mixer, selector, and the folder they are saved to."""

    def __init__(
        self, recipe: Recipe, run: Run, model: Callable[[], nn.Module] | None, data: Data, world: World
    ):
        """Every learner starts from a copy of one network."""
        self.recipe, self.run, self.data, self.world = recipe, run, data, world
        self.train_split, _ = split_off(recipe, data)
        self.batches = Batches(self.train_split, recipe.batch, Draws(recipe.seed))
        self.clock = Clock(recipe.epochs, self.batches.steps, recipe.pace)
        start = starting_network(recipe, model, data).to(world.device)
        self.scratch = copy.deepcopy(start)
        placement = Placement.alone(recipe.names)
        self.learners = [
            Learner(task, copy.deepcopy(start), world.seat(placement, task.name), recipe.seed, self.clock)
            for task in recipe.tasks
        ]
        self.mixer = Mixer(recipe.mixing, placement, weights_of(self.learners[0].model), world, self.clock)
        self.selector = Selector(recipe, data, self.scratch, self.clock)
        self.sums = {name: torch.zeros(3, dtype=torch.float64) for name in recipe.names}
        self.since = time.monotonic()

    def step(self, t: int) -> None:
        """Step t of the algorithm: every learner descends, the mixture follows, and on due dates all
        restart."""
        clock, mix = self.clock, self.recipe.mixing
        epoch = clock.epoch(t)
        batch = self.batches.at(epoch, t - (epoch - 1) * clock.steps)
        for learner in self.learners:
            self._count(learner.task.name, learner.step(batch, t), len(batch))
            self.mixer.observe(learner.task.name, learner.weights(), t)
        if mix.exchange is not None and mix.due(t, clock):
            theta = self.global_weights()
            for learner in self.learners:
                learner.receive(theta, mix.exchange.momentum, mix.exchange.averages)
        if t == epoch * clock.steps:
            self._log_epoch(t)
        if self.selector.due(t):
            self._select(t)
        if t % max(self.recipe.checkpoint.steps(clock), 1) == 0:
            self.save(t)

    def global_weights(self) -> Weights:
        """theta_g, with batch-norm statistics of its own where the recipe asks for them."""
        theta = self.mixer.collect()
        if self.recipe.mixing.buffers == "recalibrate":
            copy_(weights_of(self.scratch), theta)
            draws = Draws(self.recipe.seed).at("recalibrate")
            images = some_images(self.train_split, RECALIBRATION_IMAGES, draws, self.recipe.batch)
            device, dtype = device_of(self.scratch)
            recalibrate_(self.scratch, [x.to(device, dtype) for x in images])
            theta = snapshot(weights_of(self.scratch))
        return theta

    def save(self, t: int) -> None:
        """Write a checkpoint, then drop best weights it does not mention."""
        states = {
            learner.task.name: learner.state()
            | {f"part.{name}": part for name, part in self.mixer.parts[learner.task.name].items()}
            for learner in self.learners
        }
        sums = {name: _numbers(values) for name, values in self.sums.items()}
        self.run.save_checkpoint(t, states, {"best": self.selector.best, "sums": sums})
        self.run.keep_best(self.selector.best["t"] if self.selector.best else None)

    def resume(self) -> int:
        """Take up the newest checkpoint; the step it was made after, 0 where there is none."""
        point = self.run.resume_point()
        if point is None:
            self.run.keep_best(None)
            return 0
        path, facts = point
        for learner in self.learners:
            name = learner.task.name
            state = read_tensors(path, name)
            learner.restore(state)
            copy_(
                self.mixer.parts[name],
                {k.removeprefix("part."): v for k, v in state.items() if k.startswith("part.")},
            )
            self.sums[name] = torch.tensor(facts["sums"][name], dtype=torch.float64)
        self.selector.best = facts["best"]
        self.run.keep_best(self.selector.best["t"] if self.selector.best else None)
        return int(facts["t"])

    def finish(self) -> None:
        """Write the final weights; their presence means the run is finished."""
        self.run.save_weights(
            "last", self.clock.total, self._all_weights(self.global_weights()), self._card()
        )

    def _select(self, t: int) -> None:
        theta = self.global_weights()
        facts = self.selector.measure(theta, t)
        if facts["best"]:
            self.run.save_weights(
                "best", t, self._all_weights(theta), {**self._card(), "score": facts["score"]}
            )
        self.run.log("validation", t=t, epoch=self.clock.epoch(t), **facts, seconds=self._seconds())

    def _all_weights(self, theta: Weights) -> dict[str, Weights]:
        return {"global": theta, **{learner.task.name: learner.weights() for learner in self.learners}}

    def _card(self) -> dict[str, Any]:
        return {
            "classes": list(self.data.classes),
            "shape": list(self.data.shape),
            "data": self.data.name,
            "selected_on": self.recipe.validation.on,
        }

    def _count(self, name: str, loss: Loss, images: int) -> None:
        accuracy = loss.parts.get("accuracy", torch.zeros(()))
        row = torch.stack(
            [loss.total.detach().double().cpu(), accuracy.double().cpu(), torch.ones((), dtype=torch.float64)]
        )
        self.sums[name] += row * images

    def _log_epoch(self, t: int) -> None:
        shares = self.recipe.mixing.shares_at(t, self.clock, self.recipe.names)
        seconds = self._seconds()
        for learner in self.learners:
            name = learner.task.name
            loss, accuracy, images = _numbers(self.sums[name])
            facts = {
                "loss": loss / images,
                "accuracy": accuracy / images,
                "lr": learner.set_lr(t),
                "share": shares[name],
            }
            self.run.log("epoch", t=t, epoch=self.clock.epoch(t), learner=name, **facts, seconds=seconds)
            self.sums[name].zero_()

    def _seconds(self) -> float:
        """Since the last time it was asked."""
        since, self.since = self.since, time.monotonic()
        return round(self.since - since, 3)


def _numbers(row: Tensor) -> list[float]:
    return cast(list[float], row.tolist())


def _with_given(recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data | None) -> Recipe:
    """Record what was handed over from Python by name."""
    if model is not None:
        name = f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', type(model).__name__)}"
        recipe = replace(recipe, model=GivenModel(name=name))
    return recipe if data is None else replace(recipe, data=GivenData(name=data.name))
