"""What a training says over the wire, on paper: bytes by the formulas of docs/guide/distributed.md, and
seconds for stated links and a stated speed. Nothing is trained.

    python benchmarks/wire.py imagenet/generalist-t --images 1281167 --classes 1000 --shape 3 224 224

Seconds of a step assume that an image takes as long in a small batch as in a large one, that an all-reduce of
b bytes among g ranks takes 2 (g - 1) / g * b / bandwidth, that the sums of batch-norm cost their latency
alone, and that nothing overlaps, which is how it is written.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from torch import nn

from allrounder.config.time import Clock
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.training.seating import seating

LINKS = {"10 Gb/s": (1.25e9, 200e-6), "100 Gb/s": (12.5e9, 50e-6), "NVLink-class, 300 GB/s": (300e9, 20e-6)}
"""Bytes a second and seconds of a small collective, both assumed."""


@dataclass(frozen=True)
class Sizes:
    """A network in bytes: parameters, everything, and what batch-norm sums in a step and rank."""

    parameters: int
    weights: int
    norm: int
    sums: int

    @classmethod
    def of(cls, model: nn.Module) -> Sizes:
        """Of a network in float32."""
        layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
        channels = sum(layer.num_features for layer in layers)
        return cls(
            sum(tensor.nbytes for tensor in model.parameters()),
            sum(tensor.nbytes for tensor in model.state_dict().values()),
            4 * (4 * channels + len(layers)),
            3 * len(layers),
        )

    def state(self, task: Task) -> int:
        """What a checkpoint holds of a learner with momentum: weights, part, momentum, and its average."""
        return self.parameters + (2 if task.average is None else 3) * self.weights


def main() -> None:
    """Print the bytes of a run, then the seconds of a step for every number of ranks and every link."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--images", type=int, required=True, help="in the training set")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--shape", type=int, nargs=3, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[3, 6, 12, 24, 48, 96])
    parser.add_argument("--speed", type=float, default=1000, help="images a second and rank, to and fro")
    chosen = parser.parse_args()
    recipe = Recipe.load(chosen.recipe, chosen.sets)
    with torch.device("meta"):
        model = recipe.model.build(chosen.classes, tuple(chosen.shape))
    sizes, trained = Sizes.of(model), chosen.images - recipe.validation.images
    clock = Clock(recipe.epochs, math.ceil(trained / recipe.batch), recipe.pace)
    exchanges = sum(recipe.mixing.due(t, clock) for t in range(1, clock.total))
    validations = math.ceil(clock.total / recipe.validation.every.steps(clock))
    collects, tasks = exchanges + validations + 1, recipe.tasks
    seen = recipe.validation.images + recipe.validation.train_images
    asked = len(recipe.selection_threats) * recipe.validation.attack.passes().forwards
    apart = sum(sizes.state(task) for task in tasks[1:])
    summed = sizes.parameters + sizes.norm
    print(f"parameters {sizes.parameters:,} bytes, with buffers {sizes.weights:,}")
    print(f"{clock.steps:,} steps an epoch; a learner gets {max(recipe.batch // 2, 1)} ranks at most")
    print(
        f"{validations} validations, {exchanges} exchanges, 1 end: {collects} times every part is broadcast"
    )
    print(f"a checkpoint sends at most {apart:,} bytes to rank 0")
    print(f"a step of a shared learner sums {summed:,} bytes a rank in {sizes.sums + 1} calls")
    print(f"ranks | of a learner | broadcast, bytes | compute s | {' | '.join(LINKS)} | validation s")
    for size in chosen.ranks:
        placement = seating(recipe, model, recipe.batch, size)
        counts = {name: len(ranks) for name, ranks in placement.ranks.items()}
        broadcast = (size - 1) * sizes.weights * (1 + len(tasks) * collects)
        images = {task.name: recipe.batch * task.passes().forwards / counts[task.name] for task in tasks}
        compute = {name: count / chosen.speed for name, count in images.items()}
        cells: list[str] = []
        for bandwidth, latency in LINKS.values():
            sums = {
                name: 2 * (g - 1) / g * sizes.parameters / bandwidth + sizes.sums * latency if g > 1 else 0.0
                for name, g in counts.items()
            }
            cells.append(f"{max(compute[name] + sums[name] for name in counts):.3f}")
        shared = seen * (asked + 1) / chosen.speed / size
        told = "+".join(map(str, counts.values()))
        row = (
            size,
            told,
            f"{broadcast:,}",
            f"{max(compute.values()):.3f}",
            *cells,
            f"{shared:.0f}",
        )
        print(" | ".join(map(str, row)))


if __name__ == "__main__":
    main()
