"""What fetching and augmenting a mini-batch costs beside a step of natural training, the cheapest there is.

A batch is 128 colour images of 32x32 pixels, kept as bytes. Every augmentation is timed in turns with a step
of ResNet-18 on one thread, and only shares of that step's time are reported, because machines are shared and
noisy. The aim is a share of at most 3%.
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
from allrounder.data.augment import AUGMENTS, Augment, ColourJitter, CropFlip, CutMix, ResizedCrop
from allrounder.data.base import Batches, Tensors
from allrounder.distributed import Placement, World
from allrounder.models.resnet import ResNet18
from allrounder.objectives import Natural
from allrounder.recipe.task import Task
from allrounder.rng import Draws
from allrounder.training.learner import Learner

IMAGES, CLASSES, SHAPE = 4096, 10, (3, 32, 32)
AIM = 0.03
REPEATS = 5
"""An augmentation is quick, so it is timed several times in a turn."""
FIELDS: dict[str, dict[str, Any]] = {
    "colour-jitter": {"hue": 0.1},
    "chain": {"steps": (ResizedCrop(), ColourJitter(hue=0.1), CutMix())},
}


def augments() -> dict[str, Augment]:
    """One of every kind, and the costlier settings."""
    found = {kind: cls(**FIELDS.get(kind, {})) for kind, cls in AUGMENTS.items()}
    return {**found, "crop-flip, reflected": CropFlip(padding="reflect")}


def batches(size: int) -> Batches:
    """Mini-batches of random bytes."""
    images = Draws(0).integers(IMAGES * 3 * 32 * 32, 0, 256).to(torch.uint8).view(IMAGES, *SHAPE)
    return Batches(Tensors(images, Draws(1).integers(IMAGES, 0, CLASSES), CLASSES), size, Draws(2))


def learner(steps: int) -> Learner:
    """A natural learner that leaves its images as they are."""
    task = Task(name="natural", objective=Natural(), lr=Constant(value=0.01), augment=AUGMENTS["none"]())
    with Draws(0).ambient():
        model = ResNet18().build(CLASSES, SHAPE)
    seat = World(0, 1, torch.device("cpu")).seat(Placement.alone(("natural",)), "natural")
    return Learner(task, model, seat, 0, Clock(1, steps, "epoch"))


def timed(run: Callable[[], object]) -> float:
    """The seconds of one call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Print the share of every augmentation, of fetching alone first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = batches(arguments.batch)
    who, given = learner(source.steps), source.at(1, 1)
    steps = list[float]()
    seconds: dict[str, list[float]] = {name: [] for name in augments()}
    for number in range(1, arguments.rounds + 2):  # the first round warms up
        steps.append(timed(lambda: who.step(given, 1)))
        for name, augment in augments().items():
            for step in range(1, REPEATS + 1):
                draws = Draws(3).at(number, step)
                seconds[name].append(timed(lambda: augment.apply(source.at(1, step), draws)))  # noqa: B023
    whole = statistics.median(steps[1:])
    print(f"resnet18, batch {arguments.batch}, 1 thread, torch {torch.__version__}")
    for name, times in sorted(seconds.items(), key=lambda item: item[0] != "none"):
        share = statistics.median(times[REPEATS:]) / whole
        told = "fetching alone" if name == "none" else f"fetching and {name}"
        print(f"  {share:7.3%} of a step  {told}{'' if share <= AIM else f'  ABOVE {AIM:.0%}'}")


if __name__ == "__main__":
    main()
