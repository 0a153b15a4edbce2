"""Choose the best global weights of a run on images that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from allrounder.data.base import Split, Subset
from allrounder.distributed import World
from allrounder.evaluation.assemble import assemble_outcome
from allrounder.evaluation.evaluate import default_batch_size
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import AttackRunner
from allrounder.evaluation.store import ResultStore
from allrounder.nn.state import copy_, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.data import TrainingData
from allrounder.training.pass_times import suite_passes
from allrounder.types import Passes


@final
class ModelSelector:
    """Measures natural plus robust accuracy a few times during a run and keeps the best score.

    The ranks share the images. The result for an image does not depend on the rank that computes it, so all
    ranks get the same numbers, and they equal those of a single process.
    """

    def __init__(
        self, recipe: Recipe, data: TrainingData, scratch_model: nn.Module, world: World | None = None
    ):
        """`scratch_model` is a network whose weights may be overwritten."""
        self.settings = settings = recipe.validation
        self.seed = recipe.seed
        self.scratch_model = scratch_model
        self.clock = data.clock
        self.world = world or World.single_process()
        self.scored_threats = [str(threat) for threat in recipe.selection_threats]
        threats = dict.fromkeys((*recipe.selection_threats, *settings.also))
        self.probes = [Probe("validation", settings.attack, threat) for threat in threats]
        self.scored_probes = [probe for probe in self.probes if probe.threat in recipe.selection_threats]
        self.split = data.validation
        self.num_classes = len(data.dataset.classes)
        rows = Rng(recipe.seed).fold_in("slice").permutation(len(data.train))[: settings.train_images]
        self.train_slice = Subset(data.train, rows) if settings.train_images else None
        self.best: dict[str, Any] | None = None

    def is_due(self, t: int) -> bool:
        """Whether the global weights are measured after step t; always after the last step."""
        every = max(self.settings.every.to_steps(self.clock), 1)
        return self.split is not None and (t % every == 0 or t == self.clock.total_steps)

    def measure(self, theta: Mapping[str, Tensor], t: int) -> dict[str, Any]:
        """Return accuracies of global weights, and whether they are the best. All ranks call it together."""
        facts = self._score(theta, self.probes)
        facts["selected_on"] = self.settings.on
        if self.train_slice is not None:
            facts["train"] = self._accuracies(self.train_slice, self.probes)
        facts["best"] = self.best is None or facts["score"] > self.best["score"]
        if facts["best"]:
            self.best = {"t": t, "score": facts["score"], "selected_on": self.settings.on}
        return facts

    def score(self, theta: Mapping[str, Tensor]) -> float:
        """Return natural plus robust accuracy of global weights, which are not selected. All ranks call it
        together."""
        return self._score(theta, self.scored_probes)["score"]

    def score_passes(self) -> Passes:
        """Return an upper bound on the passes of `score` over all images."""
        assert self.split is not None
        return suite_passes(self.scored_probes, self.num_classes) * len(self.split)

    def _score(self, theta: Mapping[str, Tensor], probes: Sequence[Probe]) -> dict[str, Any]:
        assert self.split is not None
        copy_(weights_of(self.scratch_model), theta)
        facts = self._accuracies(self.split, probes)
        robust = [facts["robust"][threat] for threat in self.scored_threats]
        facts["score"] = facts["natural"] + (sum(robust) / len(robust) if robust else 0.0)
        return facts

    def _accuracies(self, split: Split, probes: Sequence[Probe]) -> dict[str, Any]:
        rows, store = torch.arange(len(split)), ResultStore(len(split))
        # Signals are handled after the step, when its state can be saved.
        model, size = self.scratch_model, default_batch_size(self.scratch_model, split)
        runner = AttackRunner(
            model, split, store, seed=self.seed, batch_size=size, report=lambda _: self.world.heartbeat()
        )
        own_rows = rows[self.world.rank :: self.world.size]
        if len(own_rows):
            runner.run(own_rows, probes)
        for results in self.world.all_gather_object(f"{len(split)} validation images", store.export()):
            store.merge(results)
        outcome = assemble_outcome(store, probes, rows, split.labels, {})
        robust = {str(p.threat): outcome.accuracy("validation", str(p.threat)) for p in probes}
        return {"natural": outcome.accuracy(), "robust": robust}
