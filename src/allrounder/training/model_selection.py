"""Choose the best global weights of a run on images that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from allrounder.config.time import Clock
from allrounder.data.base import Data, Split, Subset
from allrounder.data.splits import hold_out
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.evaluation.assemble import outcome_of
from allrounder.evaluation.evaluate import lane_for
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import Assessor
from allrounder.evaluation.store import Ledger
from allrounder.nn.state import copy_, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Draws


@final
class Selector:
    """Measures natural plus robust accuracy at a few points in time and remembers the best of them.

    The ranks of a world share the images. What is found of an image does not depend on who asks, so all come
    to the same numbers, and to those of a single process.
    """

    def __init__(
        self, recipe: Recipe, data: Data, scratch: nn.Module, clock: Clock, world: World | None = None
    ):
        """`scratch` is a network whose weights may be overwritten."""
        rule, self.world = recipe.validation, world or World.alone()
        self.rule, self.seed, self.scratch, self.clock = rule, recipe.seed, scratch, clock
        self.counted = [str(threat) for threat in recipe.selection_threats]
        measured = dict.fromkeys((*recipe.selection_threats, *rule.also))
        self.probes = [Probe("validation", rule.attack, threat) for threat in measured]
        train, held_out = split_off(recipe, data)
        self.split = data.test if rule.on == "test" else held_out
        order = Draws(recipe.seed).at("slice").permutation(len(train))
        self.slice = Subset(train, order[: rule.train_images]) if rule.train_images else None
        self.best: dict[str, Any] | None = None

    def due(self, t: int) -> bool:
        """Whether the global weights after step t are measured; those of the end always are."""
        every = max(self.rule.every.steps(self.clock), 1)
        return self.split is not None and (t % every == 0 or t == self.clock.total)

    def measure(self, theta: Mapping[str, Tensor], t: int) -> dict[str, Any]:
        """Accuracies of some global weights, and whether they are the best so far; all ranks measure
        together."""
        assert self.split is not None
        copy_(weights_of(self.scratch), theta)
        facts = self._accuracies(self.split)
        robust = [facts["robust"][threat] for threat in self.counted]
        facts["score"] = facts["natural"] + (sum(robust) / len(robust) if robust else 0.0)
        facts["selected_on"] = self.rule.on
        if self.slice is not None:
            facts["train"] = self._accuracies(self.slice)
        facts["best"] = self.best is None or facts["score"] > self.best["score"]
        if facts["best"]:
            self.best = {"t": t, "score": facts["score"], "selected_on": self.rule.on}
        return facts

    def _accuracies(self, split: Split) -> dict[str, Any]:
        rows, width, ledger = torch.arange(len(split)), lane_for(self.scratch, split), Ledger(len(split))
        # A signal waits until the step is over and can be saved, so it is not asked for here.
        assessor = Assessor(
            self.scratch, split, ledger, seed=self.seed, width=width, report=lambda tick: self.world.tick()
        )
        own = rows[self.world.rank :: self.world.size]
        if len(own):
            assessor.assess(own, self.probes)
        for told in self.world.meet(f"{len(split)} validation images", ledger.told()):
            ledger.hear(told)
        outcome = outcome_of(ledger, self.probes, rows, split.labels, {})
        robust = {str(p.threat): outcome.accuracy("validation", str(p.threat)) for p in self.probes}
        return {"natural": outcome.accuracy(), "robust": robust}


def split_off(recipe: Recipe, data: Data) -> tuple[Split, Split | None]:
    """The images to train on, and those held out to select on; selecting on the test set holds out none."""
    if recipe.validation.on == "test" or recipe.validation.images == 0:
        return data.train, None
    try:
        return hold_out(data.train, recipe.validation.images, Draws(recipe.seed).at("validation"))
    except ValueError as error:
        raise RecipeError(f"validation.images: {error}") from None
