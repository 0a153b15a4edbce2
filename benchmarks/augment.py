"""The cost of fetching and augmenting a batch, as a share of a step of natural training, the cheapest step.

A batch has 128 color images of 32x32 pixels, stored as bytes. Each augmentation is timed in turns with a step
of ResNet-18 on one thread. Only shares of the step's time are reported, because absolute times vary with the
load of the machine. The aim is a share of at most 3%.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data.augment import AUGMENTS, Augment, ColorJitter, CropFlip, CutMix, ResizedCrop
from allrounder.data.base import TensorSplit
from allrounder.data.batches import Batches
from allrounder.distributed import Placement, World
from allrounder.models.resnet import ResNet18
from allrounder.objectives import Natural
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.training.learner import Learner

IMAGES, CLASSES, SHAPE = 4096, 10, (3, 32, 32)
MAX_SHARE = 0.03
CALLS_PER_ROUND = 5
"""An augmentation is fast, so it is timed several times per round."""
FIELDS: dict[str, dict[str, Any]] = {
    "color-jitter": {"hue": 0.1},
    "chain": {"steps": (ResizedCrop(), ColorJitter(hue=0.1), CutMix())},
}


def make_augments() -> dict[str, Augment]:
    """One augmentation of every kind, and the more expensive settings."""
    augments = {kind: cls(**FIELDS.get(kind, {})) for kind, cls in AUGMENTS.items()}
    return {**augments, "crop-flip, reflected": CropFlip(padding="reflect")}


def make_batches(size: int) -> Batches:
    """Batches of random images."""
    images = Rng(0).integers(IMAGES * 3 * 32 * 32, 0, 256).to(torch.uint8).view(IMAGES, *SHAPE)
    return Batches(TensorSplit(images, Rng(1).integers(IMAGES, 0, CLASSES), CLASSES), size, Rng(2))


def make_learner(steps: int) -> Learner:
    """A natural learner without augmentation."""
    task = Task(name="natural", objective=Natural(), lr=Constant(value=0.01), augment=AUGMENTS["none"]())
    with Rng(0).seed_global():
        model = ResNet18().build(CLASSES, SHAPE)
    shard = World(0, 1, torch.device("cpu")).shard_for(Placement({"natural": (0,)}), "natural")
    assert shard is not None
    return Learner(task, model, shard, 0, Clock(1, steps, "epoch"))


def time_call(run: Callable[[], object]) -> float:
    """The seconds that one call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Print the share of every augmentation, beginning with that of fetching without augmentation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = make_batches(arguments.batch)
    learner = make_learner(source.steps)
    batch = source.at(1, 1)
    steps: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in make_augments()}
    for number in range(1, arguments.rounds + 2):  # the first round warms up
        steps.append(time_call(lambda: learner.step(batch, 1)))
        for name, augment in make_augments().items():
            for step in range(1, CALLS_PER_ROUND + 1):
                rng = Rng(3).fold_in(number, step)
                seconds[name].append(time_call(lambda: augment.apply(source.at(1, step), rng)))  # noqa: B023
    step_seconds = statistics.median(steps[1:])
    print(f"resnet18, batch {arguments.batch}, 1 thread, torch {torch.__version__}")
    for name, times in sorted(seconds.items(), key=lambda item: item[0] != "none"):
        share = statistics.median(times[CALLS_PER_ROUND:]) / step_seconds
        label = "fetching only" if name == "none" else f"fetching and {name}"
        print(f"  {share:7.3%} of a step  {label}{'' if share <= MAX_SHARE else f'  ABOVE {MAX_SHARE:.0%}'}")


if __name__ == "__main__":
    main()
