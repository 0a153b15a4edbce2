"""Short trainings of shipped recipes on a few images, and what their run folders hold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from allrounder.data import Embedded
from allrounder.data.base import Data, Subset
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.golden.results import Result, make_result
from tests.golden.subjects import make_bytes

GREY = (
    *("epochs=3", "batch_size=16", "model.width=4", "validation.images=8", "validation.train_images=6"),
    *("validation.every='60%'", "validation.attack={ kind = 'pgd', steps = 2 }", "checkpoint='100%'"),
)
"""Three epochs of two steps on embedded images."""
COLOUR = (
    *(
        "epochs=1",
        "batch_size=10",
        "validation.images=10",
        "validation.train_images=0",
        "validation.every='100%'",
    ),
    *("validation.attack={ kind = 'pgd', steps = 1 }", "model.width=8", "checkpoint='100%'"),
)
"""An epoch of two steps on colour images of CIFAR's size."""


@cache
def load_grey_images() -> Data:
    """Cut forty training and ten test images from the embedded data."""
    whole = Embedded().load()
    train_part, test_part = Subset(whole.train, torch.arange(40)), Subset(whole.test, torch.arange(10))
    return Data("embedded cut", train_part, test_part, whole.classes)


@cache
def make_colour_images() -> Data:
    """Make thirty training and ten test images in colour, 32x32 pixels, of ten classes."""
    images = torch.from_numpy(make_bytes(40, (32, 32, 3)))
    labels = torch.arange(40) % 10
    return Data.from_arrays("colours", images[:30], labels[:30], images[30:], labels[30:], layout="nhwc")


def run_recipe(
    name: str, sets: Sequence[str], data: Data, out: Path, *, resume: bool = False, **more: Any
) -> Run:
    """Train a shipped recipe with overrides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about budgets such as 0.031, which the released code has
        return train(Recipe.load(name, sets), out, data=data, resume=resume, **more)


def train_grey(name: str, *sets: str) -> Result:
    """Train a shipped recipe on embedded images."""
    with TemporaryDirectory() as folder:
        run_recipe(name, (*GREY, *sets), load_grey_images(), Path(folder) / "run")
        return summarise_run(Path(folder) / "run")


def train_colour(name: str, *sets: str) -> Result:
    """Train a shipped recipe on colour images."""
    with TemporaryDirectory() as folder:
        run_recipe(name, (*COLOUR, *sets), make_colour_images(), Path(folder) / "run")
        return summarise_run(Path(folder) / "run")


def fine_tune(first: str, second: str, *sets: str) -> Result:
    """Train a shipped recipe, and another one from the best weights of its run."""
    with TemporaryDirectory() as folder:
        run, data = Path(folder) / "first", load_grey_images()
        run_recipe(first, (*GREY, *sets), data, run)
        start = f"init={{ kind = 'run', run = '{run.as_posix()}', which = 'best' }}"
        run_recipe(second, (*GREY, *sets, start), data, Path(folder) / "second")
        return summarise_run(Path(folder) / "second")


def summarise_run(folder: Path) -> Result:
    """Summarise a run and its phases: the losses of all epochs, and a digest of all saved weights, learning
    rates, shares and accuracies."""
    losses, numbers, tensors = list[float](), list[float](), dict[str, Tensor]()
    for path in sorted(folder.rglob("metrics.jsonl")):
        run, place = Run(path.parent), path.parent.relative_to(folder).as_posix()
        for event in run.metrics():
            if event["event"] == "epoch":
                losses.append(event["loss"])
                numbers += [event["lr"], event["share"], event["accuracy"]]
            elif event["event"] == "validation":
                numbers += [event["natural"], *event["robust"].values(), event["score"]]
                train_part = event.get("train")
                numbers += (
                    [] if train_part is None else [train_part["natural"], *train_part["robust"].values()]
                )
            elif event["event"] == "point":
                numbers += [event["position"], event["natural"], event["worst"], event["mean"]]
        for which in _name_weights(run):
            for name, tensor in run.weights(which)[0].items():
                tensors[f"{place} {which} {name}"] = tensor
    tensors["zz numbers"] = torch.tensor(numbers, dtype=torch.float64)
    return make_result(tensors, losses)


def _name_weights(run: Run) -> list[str]:
    """Name all saved weights: global, best, every learner's, and live ones beside averages."""
    names = ["global", "best"] if list((run.folder / "weights").glob("best-*")) else ["global"]
    present = {file.stem for file in (run.folder / "weights").glob("last-*/*.safetensors")}
    for task in run.recipe.tasks:
        names += [name for name in (task.name, f"{task.name}.live") if name in present]
    return names
