"""The machines that benchmarks of training measure: real learners and mixers on synthetic images.

The recipes are those of the papers with another network and data, no validation and no checkpoint.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import adapter
from allrounder.config.schedules import Constant
from allrounder.config.time import Time
from allrounder.data import Given
from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.inference.fold import frozen
from allrounder.models import MODELS, ModelSpec
from allrounder.models.base import Shape
from allrounder.nn.state import weights_of
from allrounder.objectives import Adversarial
from allrounder.recipe.mix import Shares
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Draws
from allrounder.training.run import Run
from allrounder.training.training import Training

SHAPES: dict[str, Shape] = {"small-cnn": (1, 28, 28), "resnet18": (3, 32, 32)}
"""The networks, each with the images it is measured on."""
VARIANTS = {"d": "cifar10/generalist-d-nt-linf", "t": "cifar10/generalist-t"}
"""Generalist-D (natural and Linf) and Generalist-T (natural, Linf and L2); all learners keep averages."""
CLASSES, BATCHES, EPOCHS = 10, 8, 1000


def network(kind: str, width: int | None = None) -> ModelSpec:
    """The network of a kind, of another width if one is given."""
    return adapter(MODELS[kind]).validate_python({} if width is None else {"width": width})


def recipe_of(variant: str, kind: str, batch: int) -> Recipe:
    """A Generalist of the papers, made so long that neither its end nor an exchange is ever reached."""
    return quiet(Recipe.load(VARIANTS[variant]), network(kind), batch)


def recipe_for(learners: int, steps: int, model: ModelSpec, batch: int) -> Recipe:
    """So many Linf learners of equal shares, each with an attack of so many steps."""
    base = Recipe.load(VARIANTS["d"])
    task = next(task for task in base.task if isinstance(task.objective, Adversarial))
    assert isinstance(task.objective, Adversarial) and base.mix is not None
    objective = replace(task.objective, attack=Pgd(steps=steps))
    tasks: list[Task] = [
        replace(task, name=f"linf{number}", objective=objective) for number in range(learners)
    ]
    rest = {task.name: 1 / (learners - 1) for task in tasks[1:]}
    shares = Shares(lead=tasks[0].name, curve=Constant(value=1 / learners), rest=rest)
    mix = replace(base.mix, shares=shares) if learners > 1 else None
    return quiet(replace(base, task=tuple(tasks), mix=mix), model, batch)


def quiet(recipe: Recipe, model: ModelSpec, batch: int) -> Recipe:
    """A recipe that only trains: nothing is validated, and nothing is saved before the end."""
    return replace(
        recipe,
        data=Given(name="synthetic"),
        model=model,
        batch=batch,
        epochs=EPOCHS,
        validation=replace(recipe.validation, images=0, train_images=0),
        checkpoint=Time.read("100%"),
    )


def synthetic(shape: Shape, batch: int) -> Data:
    """Random bytes with random labels, a few batches of them."""
    images = BATCHES * batch
    pixels = Draws(0).integers(images * shape[0] * shape[1] * shape[2], 0, 256).to(torch.uint8)
    labels = Draws(1).permutation(images) % CLASSES
    x = pixels.view(images, *shape)
    return Data.of("synthetic", x, labels, x, labels, [str(number) for number in range(CLASSES)])


def training_of(recipe: Recipe, data: Data, folder: Path) -> Training:
    """The machines of a run, in one process."""
    return Training(recipe, Run.begin(folder, recipe, resume=False), None, data, here())


def here(rank: int = 0, size: int = 1) -> World:
    """A place on the CPU."""
    return World(rank, size, torch.device("cpu"))


def storages() -> dict[int, int]:
    """The bytes of all memory that tensors and their gradients hold in this process, by its address."""
    gc.collect()
    # What torch's compiler keeps in place of tensors has shapes and no memory.
    kinds = {kind for kind in map(type, gc.get_objects()) if issubclass(kind, Tensor)}
    kinds = {kind for kind in kinds if not kind.__module__.startswith("torch._subclasses")}
    found = [item for item in gc.get_objects() if type(item) in kinds]
    found += [tensor.grad for tensor in found if tensor.is_leaf and tensor.grad is not None]
    owned = [tensor.untyped_storage() for tensor in found]
    return {storage.data_ptr(): storage.nbytes() for storage in owned if storage.nbytes()}


def newly_held(before: Mapping[int, int]) -> int:
    """The bytes that tensors hold now and did not hold before."""
    return sum(size for address, size in storages().items() if address not in before)


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that a call holds at one time, beyond what is there before it: activations, gradients,
    crafted images. Every allocation and release on the CPU is counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    found: Any = watched.profiler
    events = [event for event in found.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0))


def expected_bytes(training: Training) -> int:
    """What the machines of a run may hold between two steps, if optimisers keep a momentum.

    A learner costs its network, its momentum, its part of the mixture, and its average if it keeps one.
    Once for all there are a network for validation, a folded one where attacks craft, and the order of the
    images in an epoch.
    """
    order = 8 * len(training.train_split)
    network = network_bytes(training)
    momentum = size_of(training.scratch.parameters())
    averages = sum(learner.average is not None for learner in training.learners)
    learners = len(training.learners)
    folded = frozen(training.scratch, torch.zeros(1, *training.data.shape))
    crafts = folded is not None and any(task.objective.threats() for task in training.recipe.tasks)
    once = size_of((*folded.network.parameters(), *folded.network.buffers())) if crafts else 0
    return order + network + once + learners * (2 * network + momentum) + averages * network


def network_bytes(training: Training) -> int:
    """The parameters and buffers of one network."""
    return size_of(weights_of(training.scratch).values())


def size_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of some tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each call tells, taken in turns; a first round warms up and is not counted."""
    told: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            result = run()
            if number:
                told[name].append(result)
    return told


def cpu_seconds(run: Callable[[], object], times: int = 1) -> float:
    """The processor's seconds of a call, which other programs disturb less than those of the clock."""
    begin = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - begin) / times


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios within the rounds, so that a slow round does not count twice."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
