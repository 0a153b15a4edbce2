"""What all programs work with: a run folder, phases below it, and decisions that are logged once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

from torch import Tensor, nn

from allrounder.config.time import Clock
from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.nn.state import Weights, copy_
from allrounder.recipe.init import PHASES
from allrounder.recipe.recipe import Recipe
from allrounder.system.progress import Progress
from allrounder.training.model_selection import Selector, split_off
from allrounder.training.run import Run
from allrounder.training.starting import starting_network

Train: TypeAlias = Callable[[Recipe, Path, Data, Progress], Run]
"""Trains a plain recipe into a folder, or goes on with it; the run is finished."""


@final
class Part:
    """Tells a listener of one phase as of a part of all; lengths are counted in the phase's own steps."""

    def __init__(self, listener: Progress, epochs: int, before: int, all_epochs: int):
        """A phase of so many epochs, after so many of all."""
        self.listener, self.epochs, self.before, self.all = listener, epochs, before, all_epochs
        self.offset = 0

    def begin(self, total: int, done: int) -> None:
        """Say where the phase stands among all."""
        steps = total // self.epochs
        self.offset = self.before * steps
        self.listener.begin(self.all * steps, self.offset + done)

    def step(self, t: int) -> None:
        """Move on."""
        self.listener.step(self.offset + t)

    def say(self, text: str) -> None:
        """Hand it on."""
        self.listener.say(text)


@final
class Stage:
    """A program's run folder, its data, and the way to train a phase in a folder below.

    The run folder has no checkpoints: a phase that is finished is skipped, one that is not goes on from its
    own, and decisions that were logged are not made again. All ranks train the phases; what is made of them
    rank 0 makes for all, and it alone has the folders.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        model: Callable[[], nn.Module] | None,
        data: Data,
        world: World,
        progress: Progress,
        train: Train,
    ):
        """Take up what is there, without half a line."""
        self.recipe, self.run, self.data = recipe, run, data
        self.model, self.world, self.progress, self._train = model, world, progress, train
        if world.chief:
            run.keep_metrics(lambda event: event["event"] in ("phase", "point"))

    def train(self, name: str, recipe: Recipe | None = None, data: Data | None = None) -> Run:
        """Train a phase, as the program says or as changed, unless that was done."""
        length = {phase: one.epochs for phase, one in self.recipe.trainings().items()}
        before = sum(list(length.values())[: list(length).index(name)])
        part = Part(self.progress, length[name], before, sum(length.values()))
        folder = self.run.folder / PHASES / name
        found = self._train(recipe or self.recipe.training(name), folder, data or self.data, part)
        if self.world.chief and name not in [event["name"] for event in self.logged("phase")]:
            _, facts = found.weights()
            self.run.log("phase", name=name, t=facts["t"], fingerprint=facts["fingerprint"])
        return found

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What was decided before."""
        return [one for one in self.run.metrics() if one["event"] == event]

    def made(self, what: str, like: Weights, make: Callable[[], Mapping[str, Tensor]]) -> Weights:
        """Tensors that rank 0 makes, on every rank, in place of others of their names and shapes."""
        if self.world.chief:
            copy_(like, make())
        self.world.meet(what, None)
        self.world.broadcast_(like, src=0)
        return like

    def network(self) -> nn.Module:
        """A network whose weights may be overwritten."""
        # Not from the runs that the first phase starts from, which may be gone.
        return starting_network(self.recipe, self.model, self.data, []).to(self.world.device)

    def clock(self) -> Clock:
        """The time of the last training."""
        batches = self.recipe.batches(split_off(self.recipe, self.data)[0], self.data.extra)
        return Clock(self.recipe.epochs, batches.steps, self.recipe.pace)

    def finish(
        self, weights: Mapping[str, Weights], card: Mapping[str, Any], told: Mapping[str, Any]
    ) -> None:
        """Write the result: as the best weights where it was measured on held-out images, then as the last.

        `told` are accuracies and a score for the log, nothing where nothing was measured.
        """
        t, facts = card["t"], plain(card)
        if told:
            self.run.log("validation", t=t, epoch=self.recipe.epochs, **told, best=True)
            self.run.save_weights("best", t, weights, {**facts, "score": told["score"]})
        self.run.save_weights("last", t, weights, facts)

    def measured(self, theta: Weights) -> dict[str, Any]:
        """Accuracies of weights on the images held out for that, by all ranks; nothing where there are
        none."""
        selector = Selector(self.recipe, self.data, self.network(), self.clock(), self.world)
        if selector.split is None:
            return {}
        facts = selector.measure(theta, selector.clock.total)
        return {key: fact for key, fact in facts.items() if key != "best"}


def plain(card: Mapping[str, Any]) -> dict[str, Any]:
    """What a phase's card says that also holds for the program: not its stamp, score and files."""
    return {key: card[key] for key in ("classes", "shape", "data", "selected_on", "extra") if key in card}
