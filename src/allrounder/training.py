"""The machines of one run, and one step of Algorithms 1 and 2 of Generalist++, for any number of learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import nn

from allrounder.data.base import Data
from allrounder.data.known import check_same, facts_of
from allrounder.folding import sibling
from allrounder.learner import Learner
from allrounder.meter import Meter
from allrounder.mixing import Mixer
from allrounder.recalibration import recalibrated
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.runs import Run
from allrounder.selection import Selector, split_off
from allrounder.starting import members_of, starting_network
from allrounder.storage import read_tensors
from allrounder.times import Clock
from allrounder.weights import Weights, copy_, under, weights_of
from allrounder.world import Placement, World


@final
class Training:
    """The machines of one run: learners, mixer, selector, and the folder they are saved to."""

    def __init__(
        self, recipe: Recipe, run: Run, model: Callable[[], nn.Module] | None, data: Data, world: World
    ):
        """Every learner starts from a copy of one network."""
        self.recipe, self.run, self.data, self.world = recipe, run, data, world
        self.train_split, _ = split_off(recipe, data)
        self.batches = recipe.batches(self.train_split, data.extra)
        self.shown = facts_of(self.train_split, data.extra if recipe.extra else None)
        self.clock = Clock(recipe.epochs, self.batches.steps, recipe.pace)
        # A checkpoint replaces the starting point, so the runs that one was made of may be gone.
        members = members_of(recipe.init, run.folder.parent) if run.latest() is None else []
        start = starting_network(recipe, model, data, members).to(world.device)
        self.scratch = sibling(start)
        placement, clock, how = Placement.alone(recipe.names), self.clock, recipe.compute
        self.learners = [
            Learner(task, sibling(start), world.seat(placement, task.name), recipe.seed, clock, how)
            for task in recipe.tasks
            if task.name in placement.local(world.rank)
        ]
        for learner in self.learners:
            learner.begin([weights for _, weights in members])
        self.mixer = Mixer(recipe.mixing, placement, weights_of(start), world, self.clock)
        self.selector = Selector(recipe, data, self.scratch, self.clock)
        self.meter = Meter(recipe.names, waits=world.device.type == "cuda")

    def step(self, t: int) -> None:
        """Step t of the algorithm: every learner descends, the mixture follows, and on due dates all
        restart."""
        clock, mix = self.clock, self.recipe.mixing
        epoch = clock.epoch(t)
        batch = self.batches.at(epoch, t - (epoch - 1) * clock.steps)
        for learner in self.learners:
            self.meter.count(learner.task.name, learner.step(batch, t), len(batch))
            self.mixer.observe(learner.task.name, learner.weights(), t)
        if t == epoch * clock.steps:
            self._log_epoch(t)
        if self.selector.due(t):
            self._select(t)
        # After the last step nobody goes on, and the learners' final weights are worth keeping.
        if mix.exchange is not None and mix.due(t, clock) and t < clock.total:
            theta = self.global_weights()
            for learner in self.learners:
                learner.receive(theta, mix.exchange.momentum, mix.exchange.averages)
        if t % max(self.recipe.checkpoint.steps(clock), 1) == 0 or t == clock.total:
            self.save(t)

    def global_weights(self) -> Weights:
        """theta_g, with batch-norm statistics of its own where the recipe asks for them."""
        theta = self.mixer.collect()
        if self.recipe.mixing.buffers == "average":
            return theta
        draws = Draws(self.recipe.seed).at("recalibrate")
        return recalibrated(theta, self.scratch, self.train_split, draws, self.recipe.batch)

    def save(self, t: int) -> None:
        """Write a checkpoint, then drop best weights it does not mention."""
        states = {
            learner.task.name: learner.state()
            | {f"part.{name}": part for name, part in self.mixer.parts[learner.task.name].items()}
            for learner in self.learners
        }
        facts = {"best": self.selector.best, "sums": self.meter.sums, **self.shown}
        self.run.save_checkpoint(t, states, facts)
        self._keep_best()

    def resume(self) -> int:
        """Take up the newest checkpoint; the step it was made after, 0 where there is none."""
        point, facts = self.run.resume_point()
        if point is not None:
            check_same(self.run.folder, facts, self.shown)
            states = {name: read_tensors(point, name) for name in self.recipe.names}
            for learner in self.learners:
                state = states[learner.task.name]
                learner.restore(state)
                copy_(self.mixer.parts[learner.task.name], under("part.", state))
            self.meter.restore(facts["sums"])
            self.selector.best = facts["best"]
        self.run.rewind(point, facts["metrics_bytes"])
        self._keep_best()
        return facts["t"]

    def finish(self) -> None:
        """Write the final weights; their presence means the run is finished."""
        theta = self.global_weights()
        self.run.save_weights("last", self.clock.total, self._all_weights(theta), self._card())

    def _select(self, t: int) -> None:
        theta = self.global_weights()
        facts = self.selector.measure(theta, t)
        if facts["best"]:
            card = {**self._card(), "score": facts["score"]}
            self.run.save_weights("best", t, self._all_weights(theta), card)
        self.run.log("validation", t=t, epoch=self.clock.epoch(t), **facts, seconds=self.meter.seconds())

    def _keep_best(self) -> None:
        self.run.keep_best((self.selector.best or {}).get("t"))

    def _all_weights(self, theta: Weights) -> dict[str, Weights]:
        own = {learner.task.name: learner.weights() for learner in self.learners}
        averaged = [learner for learner in self.learners if learner.average is not None]
        return {"global": theta, **own, **{f"{learner.task.name}.live": learner.live for learner in averaged}}

    def _card(self) -> dict[str, Any]:
        extra = self.recipe.extra
        return ({} if extra is None else {"extra": str(extra)}) | {
            "classes": list(self.data.classes),
            "shape": list(self.data.shape),
            "data": self.data.name,
            "selected_on": self.recipe.validation.on,
        }

    def _log_epoch(self, t: int) -> None:
        shares = self.recipe.mixing.shares_at(t, self.clock, self.recipe.names)
        seconds = self.meter.seconds()
        for learner in self.learners:
            learner.check()
            name = learner.task.name
            facts = {**self.meter.means(name), "lr": learner.lr(t), "share": shares[name]}
            self.run.log("epoch", t=t, epoch=self.clock.epoch(t), learner=name, **facts, seconds=seconds)
