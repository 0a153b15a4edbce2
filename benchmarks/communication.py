"""An estimate of the communication of a training: bytes by the formulas of docs/guide/distributed.md, and
seconds for given networks and a given speed. Nothing is trained.

    python benchmarks/communication.py imagenet/generalist-t --images 1281167 --classes 1000 --shape 3 224 224

The seconds of a step assume that an image takes as long in a small batch as in a large one, that an
all-reduce of b bytes among g ranks takes 2 (g - 1) / g * b / bandwidth, that the sums of batch-norm only
cost their latency, and that communication and computation do not overlap, as in our
implementation.
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
from allrounder.training.setup import place_learners

LINKS = {"10 Gb/s": (1.25e9, 200e-6), "100 Gb/s": (12.5e9, 50e-6), "NVLink-class, 300 GB/s": (300e9, 20e-6)}
"""Assumed bytes per second, and seconds of a small collective."""


@dataclass(frozen=True)
class Sizes:
    """The bytes of a network."""

    parameters: int
    weights: int
    """Parameters and buffers."""
    batchnorm_bytes: int
    """Bytes that batch-norm sums over ranks in a step."""
    batchnorm_sums: int
    """Sums over ranks that batch-norm needs in a step."""

    @classmethod
    def from_model(cls, model: nn.Module) -> Sizes:
        """The sizes of a network in float32."""
        layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
        channels = sum(layer.num_features for layer in layers)
        return cls(
            sum(tensor.nbytes for tensor in model.parameters()),
            sum(tensor.nbytes for tensor in model.state_dict().values()),
            4 * (4 * channels + len(layers)),
            3 * len(layers),
        )

    def state_bytes(self, task: Task) -> int:
        """The bytes of a learner in a checkpoint: weights, partial sum, momentum and average."""
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
    parser.add_argument(
        "--speed", type=float, default=1000, help="images per second and rank, forward and backward"
    )
    options = parser.parse_args()
    recipe = Recipe.load(options.recipe, options.sets)
    with torch.device("meta"):
        model = recipe.model.build(options.classes, tuple(options.shape))
    sizes = Sizes.from_model(model)
    held_out = recipe.validation.num_held_out(options.images)
    train_images = options.images - held_out
    clock = Clock(recipe.epochs, math.ceil(train_images / recipe.batch_size), recipe.pace)
    exchanges = sum(recipe.effective_mix.exchange_due(t, clock) for t in range(1, clock.total_steps))
    validations = math.ceil(clock.total_steps / recipe.validation.every.to_steps(clock))
    broadcasts = exchanges + validations + 1
    tasks = recipe.tasks
    validation_images = held_out + recipe.validation.train_images
    attack_passes = len(recipe.selection_threats) * recipe.validation.attack.passes().forwards
    checkpoint = sum(sizes.state_bytes(task) for task in tasks[1:])
    print(f"parameters {sizes.parameters:,} bytes, with buffers {sizes.weights:,}")
    print(
        f"{clock.steps_per_epoch:,} steps per epoch; at most {max(recipe.batch_size // 2, 1)} ranks per "
        "learner"
    )
    print(
        f"{validations} validations, {exchanges} exchanges, 1 end: every partial sum is broadcast "
        f"{broadcasts} times"
    )
    print(f"a checkpoint sends at most {checkpoint:,} bytes to rank 0")
    print(
        f"a step of a shared learner sums {sizes.parameters + sizes.batchnorm_bytes:,} bytes per rank in "
        f"{sizes.batchnorm_sums + 1} calls"
    )
    print(f"ranks | per learner | broadcast, bytes | compute s | {' | '.join(LINKS)} | validation s")
    for size in options.ranks:
        placement = place_learners(recipe, model, recipe.batch_size, size)
        counts = {name: len(ranks) for name, ranks in placement.ranks.items()}
        broadcast = (size - 1) * sizes.weights * (1 + len(tasks) * broadcasts)
        images = {task.name: recipe.batch_size * task.passes().forwards / counts[task.name] for task in tasks}
        compute = {name: count / options.speed for name, count in images.items()}
        cells: list[str] = []
        for bandwidth, latency in LINKS.values():
            sums = {
                name: 2 * (g - 1) / g * sizes.parameters / bandwidth + sizes.batchnorm_sums * latency
                if g > 1
                else 0.0
                for name, g in counts.items()
            }
            cells.append(f"{max(compute[name] + sums[name] for name in counts):.3f}")
        validation = validation_images * (attack_passes + 1) / options.speed / size
        row = (
            size,
            "+".join(map(str, counts.values())),
            f"{broadcast:,}",
            f"{max(compute.values()):.3f}",
            *cells,
            f"{validation:.0f}",
        )
        print(" | ".join(map(str, row)))


if __name__ == "__main__":
    main()
