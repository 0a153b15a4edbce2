"""What is exported: the network of a run, where it comes from, and what was measured on it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import nn

from allrounder.config.fields import OneOf
from allrounder.errors import AllrounderError, InputError, RunError
from allrounder.evaluation.identity import digest_data, fingerprint_model_and_data
from allrounder.experiments.manifest import EVALUATION_FOLDER
from allrounder.models import MODELS
from allrounder.models.base import ModelSpec, Shape
from allrounder.models.factory import ModelLike
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import OUTCOME_FILE, Facts, Outcome
from allrounder.system.tensor_folders import contiguous_cpu_copy
from allrounder.training.data import load_data
from allrounder.training.run import Run, load
from allrounder.types import Weights, device_and_dtype

SAME_WEIGHTS = (("best", "global@best"), ("last", "global", "global@last"))
"""Names of the same weights of a run."""


@final
@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The network of a run in evaluation mode, with the facts that an export states."""

    run: Run
    which: str
    """The name of the weights, as for `Run.weights_file`."""
    network: nn.Module
    facts: Facts
    """The manifest of the weights."""

    @classmethod
    def load(cls, run: Run | str | Path, which: str, model: ModelLike | None = None) -> TrainedNetwork:
        """Load a network from a run folder; `model` as for `allrounder.load`."""
        source = run if isinstance(run, Run) else Run(run)
        network = load(source, which, model=model)
        dtype = device_and_dtype(network)[1]
        if dtype != torch.float32:
            raise InputError(f"model: has weights of type {dtype}, expected float32; convert it first")
        return cls(source, which, network, source.weights(which)[1])

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    @property
    def spec(self) -> ModelSpec:
        """The description of the network."""
        return self.recipe.model

    @property
    def name(self) -> str:
        """The name of the run's recipe, or of its folder."""
        return self.recipe.name or self.run.folder.resolve().name

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        return tuple(self.facts["classes"])

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the images."""
        return cast(Shape, tuple(self.facts["shape"]))

    def state_dict(self) -> Weights:
        """Return the weights and buffers, as a state dict of torch has them."""
        return {name: contiguous_cpu_copy(tensor) for name, tensor in self.network.state_dict().items()}

    def describe(self) -> dict[str, Any]:
        """Return where the network comes from, in texts and numbers only."""
        origin = {
            "name": self.name,
            "recipe": self.recipe.fingerprint(),
            "weights": self.which,
            "step": self.facts["t"],
            "seed": self.recipe.seed,
            "data": str(self.facts["data"]),
        }
        return {**origin, "allrounder": version("allrounder"), "torch": torch.__version__}

    def describe_model(self) -> dict[str, Any]:
        """Return the architecture as a recipe states it."""
        return cast(dict[str, Any], OneOf(lambda: MODELS).encode(self.spec))

    @property
    def eval_command(self) -> str:
        """The command that evaluates these weights."""
        which = "" if self.which == "best" else f" --which {shlex.quote(self.which)}"
        return f"allrounder eval {shlex.quote(str(self.run.folder))}{which}"

    def read_outcome(self) -> tuple[Outcome | None, str]:
        """Read the stored evaluation of these weights, None if there is none; also return why it was not
        checked that it is of this network and of the test images of the run, or an empty text.

        Raises RunError if it is of another recipe, network or images, or of weights that may still change.
        """
        names = next((names for names in SAME_WEIGHTS if self.which in names), (self.which,))
        folders = [self.run.folder / EVALUATION_FOLDER / name.replace("@", "-") for name in names]
        found = next((folder for folder in folders if (folder / OUTCOME_FILE).is_file()), None)
        if found is None:
            return None, ""
        if not self.run.finished:
            reason = "the training is not finished, so its evaluation may be of weights that change"
            raise RunError(f"{self.run.folder}: {reason}; finish it and evaluate again")
        outcome = Outcome.load(found / OUTCOME_FILE)
        expected = self.recipe.fingerprint()
        if (evaluated := outcome.facts.get("recipe", expected)) != expected:
            change = f"is of recipe {evaluated}, but the run is of {expected}"
            raise RunError(f"{found}: {change}; remove it and evaluate again")
        return outcome, self._check_evaluated(found, outcome.facts)

    def _check_evaluated(self, found: Path, evaluated: Facts) -> str:
        """Raise RunError unless an outcome is of this network and of the run's test images; return why this
        cannot be checked, or an empty text."""
        if not {"network", "data"} <= evaluated.keys():
            return "the evaluation does not say which network and images it is of"
        try:
            test = load_data(self.recipe).test
        except AllrounderError:
            return "the test images of the run could not be loaded"
        advice = f"move this folder away and evaluate again: {self.eval_command}"
        if digest_data(test) != evaluated["data"]:
            raise RunError(f"{found}: is of other images, expected the test images of the run; {advice}")
        if fingerprint_model_and_data(self.network, test)["network"] != evaluated["network"]:
            expected = f"expected the weights {self.which} of the run, with the logits of this machine"
            raise RunError(f"{found}: is of another network, {expected}; {advice}")
        return ""
