"""The machines of one run, and one step of Algorithms 1 and 2 of Generalist++, for any number of learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import nn

from allrounder.config.time import Clock
from allrounder.data.base import Data
from allrounder.data.fingerprint import facts_of
from allrounder.distributed import World
from allrounder.inference.fold import sibling
from allrounder.nn.batchnorm import recalibrated
from allrounder.nn.state import Weights, copy_, under, weights_of
from allrounder.recipe.mix import Mixer
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Draws
from allrounder.training.checkpoint import Minutes
from allrounder.training.learner import Learner, Seen
from allrounder.training.metrics import Meter
from allrounder.training.model_selection import Selector, split_off
from allrounder.training.run import Run
from allrounder.training.seating import seating
from allrounder.training.starting import members_of, starting_network
from allrounder.types import Batch


@final
class Training:
    """The machines of one run: learners, mixer, selector, and the folder they are saved to.

    Every rank has one, with the learners seated there; rank 0 alone reads and writes the folder.
    """

    def __init__(
        self, recipe: Recipe, run: Run, model: Callable[[], nn.Module] | None, data: Data, world: World
    ):
        """Every learner starts from a copy of one network."""
        self.recipe, self.run, self.data, self.world = recipe, run, data, world
        self.train_split, _ = split_off(recipe, data)
        self.batches = recipe.batches(self.train_split, data.extra)
        self.shown = facts_of(self.train_split, data.extra if recipe.extra else None)
        self.clock = Clock(recipe.epochs, self.batches.steps, recipe.pace)
        world.agree("the images", self.shown)
        # A checkpoint replaces the starting point, so the runs that one was made of may be gone.
        fresh = world.chief and run.latest() is None
        members = members_of(recipe.init, run.folder.parent) if fresh else []
        start = starting_network(recipe, model, data, members).to(world.device)
        world.broadcast_(weights_of(start), src=0)
        self.scratch = sibling(start)
        full = min(recipe.batch, len(self.train_split))
        self.placement = seating(recipe, start, full, world.size)
        seats = world.seats(self.placement)
        self.learners = [
            Learner(task, sibling(start), seats[task.name], recipe.seed, self.clock, recipe.compute, full)
            for task in recipe.tasks
            if task.name in seats
        ]
        for learner in self.learners:
            learner.begin([weights for _, weights in members])
        self.mixer = Mixer(recipe.mixing, self.placement, weights_of(self.scratch), world, self.clock)
        self.selector = Selector(recipe, data, self.scratch, self.clock, world)
        self.meter = Meter(recipe.names, waits=world.device.type == "cuda")
        self.minutes = Minutes(run, world, self.placement, self.clock, self.meter)

    def step(self, t: int) -> None:
        """Step t: every learner descends, the mixture follows, and on due dates all restart."""
        clock, mix, epoch = self.clock, self.recipe.mixing, self.clock.epoch(t)
        self.world.tick(t)
        if self.learners:  # a rank may have none
            self._descend(self.batches.at(epoch, t - (epoch - 1) * clock.steps), t)
        if t == epoch * clock.steps:
            self._log_epoch(t)
        if self.selector.due(t):
            self._select(t)
        # After the last step nobody goes on, and the learners' final weights are worth keeping.
        if mix.exchange is not None and mix.due(t, clock) and t < clock.total:
            theta = self.global_weights(f"the exchange after step {t}")
            for learner in self.learners:
                learner.receive(theta, mix.exchange.momentum, mix.exchange.averages)
        if t % max(self.recipe.checkpoint.steps(clock), 1) == 0 or t == clock.total:
            self.save(t)

    def _descend(self, batch: Batch, t: int) -> None:
        seen: Seen = {}
        for learner in self.learners:
            self.world.tick()
            name, images = learner.task.name, learner.seat.at(len(batch)).counts(len(batch))
            self.meter.count(name, learner.step(batch, t, seen), images)
            self.mixer.observe(name, learner.weights(), t)

    def global_weights(self, what: str = "the global weights") -> Weights:
        """theta_g, with batch-norm statistics of its own where the recipe asks for them."""
        self.minutes.meet(what)
        theta = self.mixer.collect()
        if self.recipe.mixing.buffers == "average":
            return theta
        draws = Draws(self.recipe.seed).at("recalibrate")
        return recalibrated(theta, self.scratch, self.train_split, draws, self.recipe.batch)

    def save(self, t: int) -> None:
        """Write a checkpoint, then drop best weights it does not mention."""
        self.minutes.save_checkpoint(t, self._state, {"best": self.selector.best, **self.shown})

    def resume(self) -> int:
        """Take up the newest checkpoint; the step it was made after, 0 where there is none."""
        facts, states = self.minutes.take_up(self.shown)
        for name, state in states.items():
            self._learner(name).restore(state)
            copy_(self.mixer.parts[name], under("part.", state))
        self.selector.best = facts.get("best")
        return facts["t"]

    def finish(self) -> None:
        """Write the final weights; their presence means the run is finished."""
        theta = self.global_weights("the final weights")
        self.minutes.save_weights("last", self.clock.total, theta, self._learner, self._card())

    def _select(self, t: int) -> None:
        theta = self.global_weights(f"the validation after step {t}")
        facts = self.selector.measure(theta, t)
        if facts["best"]:
            self.minutes.save_weights("best", t, theta, self._learner, self._card(score=facts["score"]))
        if self.world.chief:
            self.run.log("validation", t=t, epoch=self.clock.epoch(t), **facts, seconds=self.meter.seconds())

    def _learner(self, name: str) -> Learner:
        return next(learner for learner in self.learners if learner.task.name == name)

    def _state(self, name: str) -> Weights:
        parts = {f"part.{key}": part for key, part in self.mixer.parts[name].items()}
        return self._learner(name).state() | parts

    def _card(self, **more: float) -> dict[str, Any]:
        return ({} if self.recipe.extra is None else {"extra": str(self.recipe.extra)}) | {
            "classes": list(self.data.classes),
            "shape": list(self.data.shape),
            "data": self.data.name,
            "selected_on": self.recipe.validation.on,
            **more,
        }

    def _log_epoch(self, t: int) -> None:
        shares = self.recipe.mixing.shares_at(t, self.clock, self.recipe.names)
        for learner in self.learners:
            learner.check()
        seated = {learner.task.name: learner.lr(t) for learner in self.learners}
        self.minutes.end_epoch(t, {name: {"lr": lr, "share": shares[name]} for name, lr in seated.items()})
