"""Prepare a training: check the recipe, open the run folder, load the images, build the first network and
place the learners on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from allrounder.data import InMemory
from allrounder.data.base import Data
from allrounder.data.fingerprint import fingerprint_data
from allrounder.distributed import Placement, World, assign_ranks
from allrounder.errors import RecipeError, WorldError
from allrounder.inference.fold import copy_sharing_fold
from allrounder.models import CustomModel
from allrounder.nn.state import average_weights, copy_, weights_of
from allrounder.recipe.init import Init
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.training.checkpoint import Checkpointer
from allrounder.training.data import TrainingData
from allrounder.training.learner import Learner
from allrounder.training.metrics import EpochMetrics
from allrounder.training.mixer import Mixer
from allrounder.training.model_selection import ModelSelector
from allrounder.training.run import Run, check_weights_match
from allrounder.types import Weights

ModelFactory: TypeAlias = Callable[[], nn.Module]
"""Builds the network that replaces the recipe's."""
InitWeights: TypeAlias = list[tuple[Path, Weights]]
"""Run folders and the weights loaded from them."""
DEFAULT_WORK = 33
"""The work of a step whose number of passes is unknown: that of PGD-10, the most common attack."""


@final
@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """Everything a `Trainer` works with on one rank. Only rank 0 reads and writes the run folder."""

    recipe: Recipe
    run: Run
    world: World
    data: TrainingData
    data_facts: Mapping[str, Any]
    """Identifies the training images; a resumed run must have the same."""
    placement: Placement
    learners: list[Learner]
    """The learners on this rank, in learner order."""
    mixer: Mixer
    selection: ModelSelector
    metrics: EpochMetrics
    checkpoints: Checkpointer
    scratch_model: nn.Module
    """A network whose weights may be overwritten."""

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        run: Run,
        model: ModelFactory | None,
        data: TrainingData | Data,
        world: World,
        network: nn.Module | None = None,
    ) -> TrainingSetup:
        """Build the learners of this rank, all from one initial network. All ranks call it together.

        `network` is the initial network if it has already been built.
        """
        if isinstance(data, Data):
            data = TrainingData.split(recipe, data)
        data_facts = fingerprint_data(data.train, data.dataset.extra if recipe.extra else None)
        world.assert_equal_across_ranks("the images", data_facts)
        # A checkpoint replaces the initial weights, so the runs that they came from may be gone.
        is_new = world.is_main and run.latest_checkpoint() is None
        init_weights = load_init_weights(recipe.init, run.folder.parent) if is_new else []
        if network is None:
            network = build_initial_model(recipe, model, data.dataset, init_weights)
        network = network.to(world.device)
        world.broadcast_(weights_of(network), src=0)
        scratch_model = copy_sharing_fold(network)
        placement = place_learners(recipe, network, min(recipe.batch_size, len(data.train)), world.size)
        shards = world.shards(placement)
        learners = [
            Learner(
                task, copy_sharing_fold(network), shards[task.name], recipe.seed, data.clock, recipe.compute
            )
            for task in recipe.tasks
            if task.name in shards
        ]
        for learner in learners:
            learner.set_init([weights for _, weights in init_weights])
        metrics = EpochMetrics(recipe.names, lazy=world.device.type == "cuda")
        return cls(
            recipe=recipe,
            run=run,
            world=world,
            data=data,
            data_facts=data_facts,
            placement=placement,
            learners=learners,
            mixer=Mixer(recipe.effective_mix, placement, weights_of(scratch_model), world, data.clock),
            selection=ModelSelector(recipe, data, scratch_model, world),
            metrics=metrics,
            checkpoints=Checkpointer(run, world, placement, data.clock, metrics),
            scratch_model=scratch_model,
        )


@final
class NewRunInputs:
    """The images and the initial network that were prepared before a run folder was created."""

    def __init__(self, data: TrainingData, network: nn.Module):
        """Keep both until they are needed."""
        self.data = data
        self._network: nn.Module | None = network

    def take_network(self) -> nn.Module | None:
        """Return the network and forget it, so that it does not stay in memory beside its copies."""
        network = self._network
        self._network = None
        return network


def override_recipe(recipe: Recipe, model: ModelFactory | None, data: Data | None) -> Recipe:
    """Replace a recipe's model and data by the names of those that were passed from Python."""
    if model is not None:
        name = f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', type(model).__name__)}"
        recipe = replace(recipe, model=CustomModel(name=name))
    if data is None:
        return recipe
    spec = InMemory(name=data.name)
    extra = recipe.extra if data.extra is None or recipe.extra is None else replace(recipe.extra, data=spec)
    return replace(recipe, data=spec, extra=extra)


def run_signature(recipe: Recipe) -> dict[str, str | int]:
    """Return what all ranks of a run must have in common."""
    return {
        "recipe": f"{recipe.name} {recipe.fingerprint()}".strip(),
        "allrounder": version("allrounder"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def check_supports_distributed(recipe: Recipe, world: World) -> None:
    """Refuse updates that need other runs' weights when their learner may be placed on a rank other than
    0."""
    names = [task.name for task in recipe.tasks if task.update.num_init_runs]
    if names and len(recipe.tasks) > 1 and world.size > 1:
        raise WorldError(
            f"{recipe.name or 'recipe'}: the update of learner {names[0]} needs the weights of earlier runs, "
            f"which only rank 0 reads, but it is one of {len(recipe.tasks)} learners on {world.size} "
            "processes; train it without --workers or torchrun (the earlier runs may use them)"
        )


def load_new_run_inputs(
    recipe: Recipe, out: Path, model: ModelFactory | None, data: Data | None, world: World
) -> NewRunInputs | None:
    """Load the images and build the initial network of a run folder that rank 0 is about to create.

    It raises before the folder exists, so a recipe that cannot run leaves no folder behind. Returns None on
    other ranks and for existing folders.
    """
    if not world.is_main or out.exists():
        return None
    training_data = TrainingData.load(recipe, data)
    init_weights = load_init_weights(recipe.init, out.parent)
    network = build_initial_model(recipe, model, training_data.dataset, init_weights)
    return NewRunInputs(training_data, network)


def open_run(recipe: Recipe, out: Path, resume: bool, world: World) -> Run:
    """Open or create the run folder on rank 0; other ranks refer to it without reading it."""
    return Run.open_or_create(out, recipe, resume=resume) if world.is_main else Run(out, recipe)


def build_initial_model(
    recipe: Recipe, model: ModelFactory | None, data: Data, init_weights: InitWeights | None = None
) -> nn.Module:
    """Build a network with weights drawn from the seed, then overwrite them by the average of `init_weights`.

    Without `init_weights`, those that the recipe names are loaded.
    """
    with Rng(recipe.seed).fold_in("init").seed_global():
        network = model() if model is not None else _build_recipe_model(recipe, data)
    if init_weights is None:
        init_weights = load_init_weights(recipe.init)
    for run, weights in init_weights:
        check_weights_match(run, weights, network)
    if init_weights:
        copy_(weights_of(network), average_weights([weights for _, weights in init_weights]))
    return network


def load_init_weights(init: Init, parent: Path = Path()) -> InitWeights:
    """Load the weights that training starts from; empty for random ones.

    `parent` is the folder that contains the run folder.
    """
    return [(run, Run(run).weights(which)[0]) for run, which in init.sources(parent)]


def _build_recipe_model(recipe: Recipe, data: Data) -> nn.Module:
    try:
        return recipe.model.build(len(data.classes), data.shape)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"model: {error}") from error


def place_learners(recipe: Recipe, network: nn.Module, batch_size: int, num_ranks: int) -> Placement:
    """Assign ranks to learners by the work of one step of each task.

    A learner gets one rank if its method needs the whole batch, or if the network draws noise (dropout),
    which cannot be drawn for a part of a batch. Every rank gets at least two images of a full batch.
    """
    has_noise = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in network.modules())
    unshardable = [task.name for task in recipe.tasks if has_noise or not task.shardable()]
    work = {task.name: _work(task) for task in recipe.tasks}
    return assign_ranks(recipe.names, num_ranks, work, unshardable, max_ranks=max(batch_size // 2, 1))


def _work(task: Task) -> int:
    try:
        return task.passes().work
    except ValueError:
        return DEFAULT_WORK
