"""Self-training: a teacher that was trained before labels images for the final stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from allrounder.data.base import Data, Split
from allrounder.data.datasets.npz import InMemory
from allrounder.data.splits import Relabelled, hold_out
from allrounder.nn.state import copy_, weights_of
from allrounder.recipe.pipeline import FINAL_STAGE, SelfTraining
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.tensor_folders import read_tensors, write_folder
from allrounder.training.data import blame_field, make_batches, select_train_images, train_val_split
from allrounder.training.pipelines.base import PipelineContext, result_metadata
from allrounder.training.run import Run
from allrounder.types import Labels, Weights, device_and_dtype

LABELS = "labels"
"""The folder below the run folder, and the tensor in it, that hold the teacher's labels."""
LABEL_BATCH_SIZE = 256


def self_train(context: PipelineContext, pipeline: SelfTraining) -> None:
    """Train the teacher, let it label images, train the last stage on both sets, and copy its weights."""
    teacher = pipeline.teacher.name
    data, unlabelled = hide_labels(context.recipe, context.data.dataset, pipeline.hidden)

    def stage_recipe(name: str) -> Recipe:
        """Return the recipe of a stage, which names the labelled part of the data if there is one."""
        recipe = context.recipe.stage_recipe(name)
        if pipeline.hidden == 0:
            return recipe
        return replace(recipe, data=InMemory(name=data.name), train_images=None)

    def label_images() -> Weights:
        """Return the teacher's labels. They are saved once in the run folder, because they must stay the same
        if the run is resumed on a machine that rounds differently."""
        folder = context.run.folder / LABELS
        if not folder.exists():
            network = context.new_network()
            copy_(weights_of(network), teacher_run.weights(pipeline.which)[0])
            labels = predict_labels(network, unlabelled, context.world.heartbeat)
            agreement = float((labels == unlabelled.labels).float().mean())
            write_folder(folder, {LABELS: {LABELS: labels}}, {"images": len(labels), "agree": agreement})
        return read_tensors(folder, LABELS)

    teacher_run = context.train_stage(teacher, stage_recipe(teacher), data)
    target = {LABELS: torch.zeros(len(unlabelled), dtype=torch.int64)}
    labels = context.broadcast_from_main("the labels", target, label_images)
    with_labels = replace(data, extra=Relabelled(unlabelled, labels[LABELS]))
    run = context.train_stage(FINAL_STAGE, stage_recipe(FINAL_STAGE), with_labels)
    if not context.world.is_main:
        return
    for event in run.metrics():
        if event["event"] == "validation":
            context.run.log(**event)
    for which in ("best", "last"):
        _copy_weights(context.run, run, which)


def hide_labels(recipe: Recipe, data: Data, hidden: float) -> tuple[Data, Split]:
    """Return the dataset whose labels are known and the images that the teacher labels.

    With hidden = 0, the teacher labels the images that are trained on, without the held-out ones. Otherwise
    the labelled part is a dataset of its own, from which validation images are held out.
    """
    if hidden == 0:
        return data, train_val_split(recipe, data)[0]
    train = select_train_images(recipe, data.train)
    count = int(hidden * len(train) + 0.5)
    with blame_field("pipeline.hidden", (ValueError,)):
        labelled, unlabelled = hold_out(train, count, Rng(recipe.seed).fold_in("hidden labels"))
    return Data(f"{data.name}, {len(labelled)} labels", labelled, data.test, data.classes), unlabelled


def check_enough_images(recipe: Recipe, data: Data, hidden: float) -> None:
    """Raise RecipeError unless there are enough images, with and without labels, for one batch."""
    labelled, unlabelled = hide_labels(recipe, data, hidden)
    if hidden > 0:  # the labelled part is what remains of them
        recipe = replace(recipe, train_images=None)
    make_batches(recipe.stage_recipe(FINAL_STAGE), train_val_split(recipe, labelled)[0], unlabelled)


def predict_labels(network: nn.Module, split: Split, heartbeat: Callable[[], None] = lambda: None) -> Labels:
    """Return the classes that a network predicts for a split; `heartbeat` is called for every batch."""
    device, dtype = device_and_dtype(network)
    network.eval()
    labels: list[Tensor] = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(split)), LABEL_BATCH_SIZE):
            heartbeat()
            labels.append(network(split.fetch(rows).to(device, dtype)).argmax(1).cpu())
    return torch.cat(labels)


def _copy_weights(run: Run, source: Run, which: str) -> None:
    """Save the weights of a stage as those of the pipeline."""
    if which == "best" and not source.recipe.validation.selects:
        return
    averaged = [f"{task.name}.live" for task in source.recipe.tasks if task.average is not None]
    names = ("global", *source.recipe.names, *averaged)
    saved = {name: source.weights(f"{name}@{which}") for name in names}
    facts = saved["global"][1]
    score = {"score": facts["score"]} if "score" in facts else {}
    weights = {name: tensors for name, (tensors, _) in saved.items()}
    run.save_weights(which, facts["t"], weights, result_metadata(facts) | score)
