"""Prepare a training: check the recipe, open the run folder, build the network, place learners on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from allrounder.data import InMemory
from allrounder.data.base import Data
from allrounder.distributed import Placement, World, assign_ranks
from allrounder.errors import InputError, RecipeError, WorldError
from allrounder.inference.fast_crafting import describe_fast_convs
from allrounder.models import CustomModel
from allrounder.models.factory import ModelFactory, ModelLike, check_fits
from allrounder.nn.modes import preserve_mode
from allrounder.nn.state import average_weights, copy_, weights_of
from allrounder.recipe.init import Init
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.files import check_location
from allrounder.system.progress import NullProgress, Progress
from allrounder.system.progress_bar import TrainingBar
from allrounder.training.data import TrainingData, blame_field
from allrounder.training.run import Run, check_weights_match, identify_recipe
from allrounder.types import Weights, device_and_dtype

InitWeights: TypeAlias = list[tuple[Path, Weights]]
"""Run folders and the weights loaded from them."""
DEFAULT_WORK = 33
"""The work of a step whose number of passes is unknown: that of PGD-10, the most common attack."""


@final
@dataclass
class NewRunInputs:
    """The images, and the initial network that was built before a run folder was created."""

    data: TrainingData
    network: nn.Module | None = None


def resolve_recipe(recipe: Recipe | str | Path, overrides: Sequence[str]) -> Recipe:
    """Load a recipe that is given by its name or path, with overrides."""
    if isinstance(overrides, str):
        raise InputError(f"overrides: got the text {overrides!r}, expected a list; pass [{overrides!r}]")
    if isinstance(recipe, str | Path):
        return Recipe.load(recipe, overrides)
    if not isinstance(recipe, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(recipe).__name__
        raise InputError(f"recipe: got a {got}, expected a Recipe, or the name or path of one; pass that")
    if overrides:
        hint = "pass the recipe's name or path, or use dataclasses.replace"
        raise InputError(f"overrides: got {list(overrides)} beside a Recipe, expected none; {hint}")
    return recipe


def check_data(data: Data | None) -> None:
    """Raise InputError unless `data` is a dataset or None."""
    if data is not None and not isinstance(data, Data):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(data).__name__
        raise InputError(f"data: got a {got}, expected Data; convert it with allrounder.as_data(train, test)")


def open_progress(
    progress: Progress | bool | None, recipe: Recipe, world: World
) -> AbstractContextManager[Progress]:
    """Return what receives the progress of a training: on rank 0 a bar, or the object that was passed."""
    if progress is None or isinstance(progress, bool):
        show = progress and world.is_main
        return TrainingBar(recipe.name or "training") if show else nullcontext(NullProgress())
    if not isinstance(progress, Progress):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(progress).__name__
        raise InputError(
            f"progress: got a {got}, expected True, False, or an object with begin, step and log"
        )
    return nullcontext(progress if world.is_main else NullProgress())


def override_recipe(recipe: Recipe, model: ModelLike | None, data: Data | None) -> Recipe:
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
        "recipe": identify_recipe(recipe),
        "allrounder": version("allrounder"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def check_supports_distributed(recipe: Recipe, world: World) -> None:
    """Raise WorldError if an update needs other runs' weights and may be placed on another rank than 0."""
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
    """Load the images and build the initial network of a run folder that rank 0 is about to create. A recipe
    that cannot run raises before the folder exists. Other ranks and existing folders get None."""
    if not world.is_main:
        return None
    check_location(out)
    if out.exists():
        return None
    new_data = TrainingData.load(recipe, data)
    init_weights = load_init_weights(recipe.init, out.parent)
    return NewRunInputs(new_data, build_initial_model(recipe, model, new_data.dataset, init_weights))


def open_run(recipe: Recipe, out: Path, resume: bool, world: World) -> tuple[Run, bool]:
    """Open or create the run folder on rank 0; other ranks do not read it. Return whether it is finished."""
    run = Run.open_or_create(out, recipe, resume=resume) if world.is_main else Run(out, recipe)
    finished = world.all_gather_object(f"the run folder {out.name}", world.is_main and run.finished)
    return run, finished[0]


def build_initial_model(
    recipe: Recipe, model: ModelFactory | None, data: Data, init_weights: InitWeights | None = None
) -> nn.Module:
    """Build a network from the seed, then overwrite its weights by the average of `init_weights`, by default
    those that the recipe names."""
    with Rng(recipe.seed).fold_in("init").seed_global():
        if model is not None:
            network = model()
            check_fits(network, data.train.fetch(torch.arange(1)), len(data.classes))
        else:
            with blame_field("model", (ValueError,)):
                network = recipe.model.build(len(data.classes), data.shape)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise RecipeError("model: has no parameter that can be trained; choose another one")
    _check_accepts_crops(recipe, network, data.shape[0])
    if init_weights is None:
        init_weights = load_init_weights(recipe.init)
    for run, weights in init_weights:
        check_weights_match(run, weights, network)
    if init_weights:
        copy_(weights_of(network), average_weights([weights for _, weights in init_weights]))
    return network


def _check_accepts_crops(recipe: Recipe, network: nn.Module, channels: int) -> None:
    """Raise RecipeError unless the network accepts crops of all sizes that the tasks train on."""
    device, dtype = device_and_dtype(network)
    for task in recipe.tasks:
        for side in task.augment.sides:
            x = torch.zeros(1, channels, side, side, device=device, dtype=dtype)
            try:
                with torch.no_grad(), preserve_mode(network):
                    network.eval()(x)
            except (RuntimeError, ValueError) as error:
                raise RecipeError(
                    f"task.{task.name}.augment.size: the network does not accept images of {side}x{side} "
                    f"pixels ({error}); choose other sizes, or a network that averages over all positions"
                ) from error


def load_init_weights(init: Init, parent: Path = Path()) -> InitWeights:
    """Load the weights that a run in the folder `parent` starts from; empty for random ones."""
    return [(run, Run(run).weights(which)[0]) for run, which in init.sources(parent)]


def find_fast_convs(recipe: Recipe, network: nn.Module, data: Data) -> dict[str, dict[str, str]]:
    """Return, under the name `fast_conv`, the layers that crafting computes by a faster algorithm on images
    of the dataset's size; nothing if the recipe does not ask for it."""
    if not recipe.compute.fast_conv:
        return {}
    device, dtype = device_and_dtype(network)
    return {
        "fast_conv": describe_fast_convs(network, torch.zeros(1, *data.shape, device=device, dtype=dtype))
    }


def place_learners(recipe: Recipe, network: nn.Module, batch_size: int, num_ranks: int) -> Placement:
    """Assign ranks to learners by the work of one step of each task.

    A learner gets one rank if its method needs the whole batch, or if the network draws noise (dropout),
    which cannot be drawn for a part of a batch. Every rank gets at least two images of a full batch.
    """
    has_noise = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in network.modules())
    unshardable = [task.name for task in recipe.tasks if has_noise or not task.shardable()]
    work: dict[str, float] = dict.fromkeys(recipe.names, DEFAULT_WORK)
    for task in recipe.tasks:
        with suppress(ValueError):
            work[task.name] = float(task.mean_passes(recipe.epochs).work * recipe.batch_share(task))
    return assign_ranks(recipe.names, num_ranks, work, unshardable, max_ranks=max(batch_size // 2, 1))
