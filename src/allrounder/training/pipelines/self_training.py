"""Self-training: labels from a network that was trained before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from allrounder.data.base import Data, Split
from allrounder.data.datasets.npz import Given
from allrounder.data.relabelled import Relabelled
from allrounder.data.splits import hold_out
from allrounder.errors import RecipeError
from allrounder.nn.state import Weights, copy_, weights_of
from allrounder.recipe.pipeline import FINAL, SelfTraining
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Draws
from allrounder.system.files import read_tensors, write_folder
from allrounder.training.model_selection import split_off
from allrounder.training.pipelines.base import Stage, plain
from allrounder.training.run import Run
from allrounder.types import Labels, device_of

LABELS = "labels"
SIZE = 256
"""Images that are labelled at once."""


def self_train(stage: Stage, program: SelfTraining) -> None:
    """Train the teacher, let it label, train on both sets, and take over what comes of it."""
    recipe, name = stage.recipe, program.teacher.name
    data, pool = cut(recipe, stage.data, program.hidden)
    teacher, final = (_on(recipe.training(phase), data, program.hidden > 0) for phase in (name, FINAL))
    taught = stage.train(name, teacher, data)
    unknown = {LABELS: torch.zeros(len(pool), dtype=torch.int64)}
    found = stage.made("the labels", unknown, lambda: _labels(stage, taught.weights(program.which)[0], pool))
    run = stage.train(FINAL, final, replace(data, extra=Relabelled(pool, found[LABELS])))
    if not stage.world.chief:
        return
    for event in run.metrics():
        if event["event"] == "validation":
            stage.run.log(**event)
    for which in ("best", "last"):
        _take_over(stage.run, run, which)


def cut(recipe: Recipe, data: Data, hidden: float) -> tuple[Data, Split]:
    """The data whose labels are known, and the images that are to be labelled.

    Where none are hidden, those are the images that are trained on; held-out images are among neither. Where
    some are, the part with labels is a dataset of its own, from which images are held out.
    """
    if hidden == 0:
        return data, split_off(recipe, data)[0]
    count = int(hidden * len(data.train) + 0.5)
    try:
        known, pool = hold_out(data.train, count, Draws(recipe.seed).at("hidden labels"))
    except ValueError as error:
        raise RecipeError(f"program.hidden: {error}") from None
    return Data(f"{data.name}, {len(known)} labels", known, data.test, data.classes), pool


def check_dealt(recipe: Recipe, data: Data, hidden: float) -> None:
    """Raise RecipeError unless there are images enough, with and without labels, for a batch."""
    known, pool = cut(recipe, data, hidden)
    recipe.training(FINAL).batches(split_off(recipe, known)[0], pool)


def label(network: nn.Module, split: Split, tick: Callable[[], None] = lambda: None) -> Labels:
    """The classes that a network sees in the images of a split; `tick` is called again and again."""
    device, dtype = device_of(network)
    network.eval()
    found: list[Tensor] = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(split)), SIZE):
            tick()
            found.append(network(split.fetch(rows).to(device, dtype)).argmax(1).cpu())
    return torch.cat(found)


def _on(recipe: Recipe, data: Data, named: bool) -> Recipe:
    """A recipe that says it is trained on a part of its data, where it is."""
    return replace(recipe, data=Given(name=data.name)) if named else recipe


def _labels(stage: Stage, weights: Mapping[str, Tensor], pool: Split) -> Weights:
    """The teacher's labels, kept in the run folder: they stay when bits of another machine differ."""
    folder = stage.run.folder / LABELS
    if not folder.exists():
        network = stage.network()
        copy_(weights_of(network), weights)
        found = label(network, pool, stage.world.tick)
        agree = float((found == pool.labels).float().mean())
        write_folder(folder, {LABELS: {LABELS: found}}, {"images": len(found), "agree": agree})
    return read_tensors(folder, LABELS)


def _take_over(run: Run, source: Run, which: str) -> None:
    """Make a phase's weights those of the program."""
    averaged = [f"{task.name}.live" for task in source.recipe.tasks if task.average is not None]
    names = ("global", *source.recipe.names, *averaged)
    if which == "best" and not (source.recipe.validation.images or source.recipe.validation.on == "test"):
        return
    found = {name: source.weights(f"{name}@{which}") for name in names}
    facts = found["global"][1]
    score = {"score": facts["score"]} if "score" in facts else {}
    weights = {name: tensors for name, (tensors, _) in found.items()}
    run.save_weights(which, facts["t"], weights, plain(facts) | score)
