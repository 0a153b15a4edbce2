"""What all pipelines use: the run folder, the runs of its stages, and decisions that are logged once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.models.factory import ModelFactory
from allrounder.nn.state import copy_
from allrounder.recipe.init import STAGES_DIR
from allrounder.recipe.recipe import Recipe
from allrounder.system.progress import Progress, TrainingStatus, report_status
from allrounder.training.data import TrainingData
from allrounder.training.model_selection import ModelSelector
from allrounder.training.run import Run
from allrounder.training.setup import build_initial_model
from allrounder.types import Weights

TrainStage: TypeAlias = Callable[[Recipe, Path, Data, Progress], Run]
"""Trains or resumes a plain recipe in a folder and returns the finished run."""


@final
@dataclass
class StageProgress:
    """Reports the progress of one stage as a part of the whole pipeline, in the stage's own steps."""

    listener: Progress
    epochs: int
    epochs_before: int
    total_epochs: int
    offset: int = 0

    def begin(self, total: int, done: int) -> None:
        """Report the steps of the whole pipeline and those that are done."""
        steps_per_epoch = total // self.epochs
        self.offset = self.epochs_before * steps_per_epoch
        self.listener.begin(self.total_epochs * steps_per_epoch, self.offset + done)

    def step(self, t: int) -> None:
        """Report step t of the stage."""
        self.listener.step(self.offset + t)

    def report(self, status: TrainingStatus) -> None:
        """Report the status of the stage, with the epochs of the whole pipeline."""
        exchange = None if status.next_exchange is None else self.epochs_before + status.next_exchange
        epochs = {"epoch": self.epochs_before + status.epoch, "epochs": self.total_epochs}
        report_status(self.listener, replace(status, **epochs, next_exchange=exchange))

    def log(self, text: str) -> None:
        """Forward a message."""
        self.listener.log(text)


@final
@dataclass(frozen=True, eq=False)
class PipelineContext:
    """A pipeline's run folder and data, and the function that trains a stage in a folder below it.

    The run folder has no checkpoints: finished stages are skipped, an unfinished one resumes from its own
    checkpoint, and logged decisions are not made again; the rest of the log is. All ranks train the stages.
    Rank 0 computes what follows from them, and only rank 0 has the folders.
    """

    recipe: Recipe
    run: Run
    model: ModelFactory | None
    data: TrainingData
    world: World
    progress: Progress
    train: TrainStage

    def __post_init__(self) -> None:
        if self.world.is_main:
            self.run.filter_metrics(lambda event: event["event"] in ("stage", "point"))

    def train_stage(self, name: str, recipe: Recipe | None = None, data: Data | None = None) -> Run:
        """Train a stage unless it is finished; `recipe` and `data` replace those of the pipeline."""
        epochs = {stage: recipe.epochs for stage, recipe in self.recipe.stage_recipes().items()}
        epochs_before = sum(list(epochs.values())[: list(epochs).index(name)])
        progress = StageProgress(self.progress, epochs[name], epochs_before, sum(epochs.values()))
        recipe, folder = recipe or self.recipe.stage_recipe(name), self.run.folder / STAGES_DIR / name
        run = self.train(recipe, folder, data or self.data.dataset, progress)
        if self.world.is_main and name not in [event["name"] for event in self.logged_events("stage")]:
            _, facts = run.weights()
            self.run.log("stage", name=name, t=facts["t"], fingerprint=facts["fingerprint"])
        return run

    def logged_events(self, kind: str) -> list[dict[str, Any]]:
        """Return the logged events of a kind, including those of earlier sessions."""
        return [event for event in self.run.metrics() if event["event"] == kind]

    def broadcast_from_main(
        self, what: str, target: Weights, compute: Callable[[], Mapping[str, Tensor]]
    ) -> Weights:
        """Overwrite `target` on every rank by the tensors that rank 0 computes, and return it."""
        if self.world.is_main:
            copy_(target, compute())
        self.world.all_gather_object(what, None)
        self.world.broadcast_(target, src=0)
        return target

    def new_network(self) -> nn.Module:
        """Build a network whose weights may be overwritten."""
        # The runs that the first stage starts from may be gone, so their weights are not loaded.
        return build_initial_model(self.recipe, self.model, self.data.dataset, []).to(self.world.device)

    def finish(
        self, weights: Mapping[str, Weights], stage_facts: Mapping[str, Any], scores: Mapping[str, Any]
    ) -> None:
        """Save the result as the best weights, if it has `scores` to log, then as the last weights.
        `stage_facts` is the manifest of the last stage's weights."""
        t = stage_facts["t"]
        metadata = result_metadata(stage_facts)
        if scores:
            self.run.log("validation", t=t, epoch=self.recipe.epochs, **scores, best=True)
            self.run.save_weights("best", t, weights, {**metadata, "score": scores["score"]})
        self.run.save_weights("last", t, weights, metadata)

    def measure(self, theta: Weights) -> dict[str, Any]:
        """Return the accuracies on the validation images, if there are any. All ranks call it together."""
        if self.data.validation is None:
            return {}
        selector = ModelSelector(self.recipe, self.data, self.new_network(), self.world)
        facts = selector.measure(theta, self.data.clock.total_steps)
        return {key: fact for key, fact in facts.items() if key != "best"}


def result_metadata(stage_facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a stage's manifest that also describe the pipeline's result."""
    keys = ("classes", "shape", "data", "selected_on", "extra")
    return {key: stage_facts[key] for key in keys if key in stage_facts}
