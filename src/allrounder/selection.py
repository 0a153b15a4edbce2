"""Choose the best global weights of a run on images that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn

from allrounder.data.base import Data, Split, Subset
from allrounder.data.subset import hold_out
from allrounder.errors import RecipeError
from allrounder.evaluation import evaluate
from allrounder.pool import Send
from allrounder.probes import Probe
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.times import Clock
from allrounder.weights import copy_, weights_of


@final
class Selector:
    """Measures natural plus robust accuracy at a few points in time and remembers the best of them."""

    def __init__(
        self, recipe: Recipe, data: Data, scratch: nn.Module, clock: Clock, report: Send = lambda note: None
    ):
        """`scratch` is a network whose weights may be overwritten; `report` hears how measuring goes."""
        rule, self.report = recipe.validation, report
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
        """Accuracies of some global weights, and whether they are the best so far."""
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
        outcome = evaluate(
            self.scratch, split, probes=self.probes, seed=self.seed, check="skip", progress=self.report
        )
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
