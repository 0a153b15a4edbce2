"""What the training benchmarks share: trainers on synthetic images, and ways to measure them.

The recipes are those of the papers with another network and other data, without validation and checkpoints.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import adapter
from allrounder.config.schedules import Constant
from allrounder.config.time import Time
from allrounder.data import InMemory
from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.inference.fold import folded_copy
from allrounder.inference.winograd import ROTATED_G, A, B, G
from allrounder.models import MODELS, ModelSpec
from allrounder.models.base import Shape
from allrounder.nn.flat import flatten_
from allrounder.nn.state import weights_of
from allrounder.objectives import Adversarial
from allrounder.recipe.compute import Compute
from allrounder.recipe.mix import Shares
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.run import Run
from allrounder.training.setup import find_fast_convs
from allrounder.training.trainer import Trainer

SHAPES: dict[str, Shape] = {
    "small-cnn": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "wrn": (3, 32, 32),
    "wrn-wide": (3, 32, 32),
}
"""The shape of the images for each network."""
FIELDS: dict[str, dict[str, int]] = {
    "wrn": {"depth": 10, "widen": 4},
    "wrn-wide": {"depth": 10, "widen": 8},
}
"""Settings of networks that are too large otherwise: WRN-10-4 and WRN-10-8."""
VARIANTS = {"d": "cifar10/generalist-d-nt-linf-averaged", "t": "cifar10/generalist-t-averaged"}
"""Generalist-D (natural and Linf) and Generalist-T (natural, Linf and L2); all learners keep averages."""
CLASSES = 10
BATCHES = 8
EPOCHS = 1000
"""Enough that no benchmark reaches an exchange or the end of a run."""


def model_spec(kind: str, width: int | None = None) -> ModelSpec:
    """The spec of a network, with another width if one is given."""
    fields = FIELDS.get(kind, {}) | ({} if width is None else {"width": width})
    return adapter(MODELS[kind.removesuffix("-wide")]).validate_python(fields)


def paper_recipe(variant: str, kind: str, batch: int, *, fast_conv: bool = False) -> Recipe:
    """A Generalist recipe of the papers with another network and batch size."""
    recipe = replace(Recipe.load(VARIANTS[variant]), compute=Compute(fast_conv=fast_conv))
    return without_validation(recipe, model_spec(kind), batch)


def linf_recipe(learners: int, steps: int, model: ModelSpec, batch: int) -> Recipe:
    """A recipe with `learners` Linf learners of equal shares, each attacked by PGD of `steps` steps."""
    base = Recipe.load(VARIANTS["d"])
    task = next(task for task in base.tasks if isinstance(task.objective, Adversarial))
    assert isinstance(task.objective, Adversarial) and base.mix is not None
    objective = replace(task.objective, attack=Pgd(steps=steps))
    tasks = [replace(task, name=f"linf{number}", objective=objective) for number in range(learners)]
    rest = {task.name: 1 / (learners - 1) for task in tasks[1:]}
    shares = Shares(lead=tasks[0].name, curve=Constant(value=1 / learners), rest=rest)
    mix = replace(base.mix, shares=shares) if learners > 1 else None
    return without_validation(replace(base, tasks=tuple(tasks), mix=mix), model, batch)


def without_validation(recipe: Recipe, model: ModelSpec, batch: int) -> Recipe:
    """The recipe on synthetic images, without validation and with no checkpoint before the end."""
    return replace(
        recipe,
        data=InMemory(name="synthetic"),
        model=model,
        batch_size=batch,
        epochs=EPOCHS,
        validation=replace(recipe.validation, images=0, train_images=0),
        checkpoint=Time.parse("100%"),
    )


def synthetic(shape: Shape, batch: int) -> Data:
    """A few batches of random images with random labels."""
    images = BATCHES * batch
    pixels = Rng(0).integers(images * shape[0] * shape[1] * shape[2], 0, 256).to(torch.uint8)
    labels = Rng(1).permutation(images) % CLASSES
    x = pixels.view(images, *shape)
    return Data.from_arrays("synthetic", x, labels, x, labels, [str(number) for number in range(CLASSES)])


def build_trainer(recipe: Recipe, data: Data, folder: Path) -> Trainer:
    """The trainer of a new run in one process."""
    run = Run.open_or_create(folder, recipe, resume=False)
    return Trainer(recipe, run, None, data, cpu_world())


def cpu_world(rank: int = 0, size: int = 1) -> World:
    """A rank on the CPU that communicates with no other."""
    return World(rank, size, torch.device("cpu"))


def tensor_storages() -> dict[int, int]:
    """The bytes of every storage that a tensor or a gradient of this process holds, by address."""
    gc.collect()
    # The fake tensors of torch's compiler have shapes but no memory.
    kinds = {kind for kind in map(type, gc.get_objects()) if issubclass(kind, Tensor)}
    kinds = {kind for kind in kinds if not kind.__module__.startswith("torch._subclasses")}
    tensors = [item for item in gc.get_objects() if type(item) in kinds]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    # Filters in the layout of oneDNN have memory of their own, but no storage.
    packed = [tensor for tensor in tensors if tensor.is_mkldnn]
    storages = [tensor.untyped_storage() for tensor in tensors if not tensor.is_mkldnn]
    found = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
    return found | {id(tensor): tensor.numel() * tensor.element_size() for tensor in packed}


def new_bytes(before: Mapping[int, int]) -> int:
    """The bytes of the storages that did not exist in `before`, an earlier result of `tensor_storages`."""
    return sum(size for address, size in tensor_storages().items() if address not in before)


def peak_bytes(run: Callable[[], object]) -> int:
    """The peak of the bytes that a call allocates on the CPU: activations, gradients, crafted images. Every
    allocation and release is counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    profiler: Any = profiled.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0))


def expected_bytes(trainer: Trainer) -> int:
    """The bytes that a trainer should hold between two steps, if its optimisers have momentum.

    Fast convolutions hold their filters: a Winograd layer eight times its weights, the first layer once.
    Winograd layers share the matrices of the transforms. A learner holds its network, its momentum, its
    partial sum of the mixture, and its average if it has one, all but the momentum in buffers (nn/flat.py).
    The trainer also holds one network for validation, a folded one if there are attacks, and the order of
    the images of an epoch.
    """
    order = 8 * len(trainer.data.train)
    network = network_bytes(trainer)
    momentum = size_of(trainer.scratch_model.parameters())
    averages = sum(learner.average is not None for learner in trainer.learners)
    learners = len(trainer.learners)
    folded = folded_copy(trainer.scratch_model, torch.zeros(1, *trainer.data.dataset.shape))
    crafts = any(task.objective.threats() for task in trainer.recipe.tasks)
    once = 0
    if folded is not None and crafts:
        once = size_of((*folded.network.parameters(), *folded.network.buffers()))
        fast = find_fast_convs(trainer.recipe, trainer.scratch_model, trainer.data.dataset)
        for name, algorithm in fast.get("fast_conv", {}).items():
            weight = folded.network.get_submodule(name).get_parameter("weight")
            once += weight.nbytes * (8 if "Winograd" in algorithm else 1)
        if any("Winograd" in algorithm for algorithm in fast.get("fast_conv", {}).values()):
            once += sum(4 * len(matrix) * len(matrix[0]) for matrix in (A, B, G, ROTATED_G))
    flat = flat_bytes(trainer.scratch_model)
    return order + network + once + learners * (2 * flat + momentum) + averages * flat


def network_bytes(trainer: Trainer) -> int:
    """The bytes of the parameters and buffers of one network."""
    return size_of(weights_of(trainer.scratch_model).values())


def flat_bytes(model: nn.Module) -> int:
    """The bytes of a network whose layers have their tensors in buffers: each takes whole blocks."""
    flat = copy.deepcopy(model)
    flatten_(flat)
    return sum(
        {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in weights_of(flat).values()
        }.values()
    )


def size_of(tensors: Iterable[Tensor]) -> int:
    """The total bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def measure_in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The results of each function, called in turns; a first round warms up and is dropped."""
    results: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            result = run()
            if number:
                results[name].append(result)
    return results


def cpu_seconds(run: Callable[[], object], times: int = 1) -> float:
    """The CPU seconds of a call, which depend less on other programs than its wall time."""
    begin = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - begin) / times


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """The median of the ratios within each round, so that a slow round does not count twice."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))
