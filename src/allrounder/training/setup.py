"""What comes before the first step: what was given, what all ranks must agree on, and the run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from allrounder.data import Given as GivenData
from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.errors import WorldError
from allrounder.models import Given as GivenModel
from allrounder.recipe.recipe import Recipe
from allrounder.training.model_selection import split_off
from allrounder.training.pipelines import check
from allrounder.training.run import Run
from allrounder.training.starting import members_of, starting_network


def with_given(recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data | None) -> Recipe:
    """Record what was handed over from Python by name."""
    if model is not None:
        name = f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', type(model).__name__)}"
        recipe = replace(recipe, model=GivenModel(name=name))
    if data is None:
        return recipe
    given = GivenData(name=data.name)
    extra = recipe.extra if data.extra is None or recipe.extra is None else replace(recipe.extra, data=given)
    return replace(recipe, data=given, extra=extra)


def begun(
    recipe: Recipe,
    out: Path,
    resume: bool,
    model: Callable[[], nn.Module] | None,
    data: Data | None,
    world: World,
) -> tuple[Run, Data | None]:
    """The run folder, which rank 0 alone makes, and the data where it had to be read for that."""
    if not world.chief:
        return Run(out, recipe), data
    if not out.exists():  # what cannot be run leaves no folder behind
        data = recipe.with_extra(data or recipe.read_data())
        recipe.batches(split_off(recipe, data)[0], data.extra)
        check(recipe, data)
        starting_network(recipe, model, data, members_of(recipe.init, out.parent))
    return Run.begin(out, recipe, resume=resume), data


def identity(recipe: Recipe) -> dict[str, str | int]:
    """What all ranks of a run must have in common."""
    return {
        "recipe": f"{recipe.name} {recipe.fingerprint()}".strip(),
        "allrounder": version("allrounder"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def check_alone(recipe: Recipe, world: World) -> None:
    """Raise where an update needs the weights of runs, which rank 0 alone reads, and may sit elsewhere."""
    curved = [task.name for task in recipe.tasks if task.update.members]
    if curved and len(recipe.tasks) > 1 and world.size > 1:
        raise WorldError(
            f"{recipe.name or 'recipe'}: learner {curved[0]} moves between earlier runs, which rank 0 alone "
            f"reads, and is one of {len(recipe.tasks)} in a world of {world.size} processes; train it "
            "without --workers or torchrun (the runs that it starts from may be trained with them)"
        )
