"""Which ranks train which learner of a recipe."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from allrounder.distributed import Placement, deal
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task

UNKNOWN = 33
"""The work of a step whose passes are not known: that of PGD-10, which most are made of."""


def seating(recipe: Recipe, network: nn.Module, images: int, size: int) -> Placement:
    """Deal ranks by what a step of each task takes.

    One rank has the whole batch of a learner that says so, and of any where the network draws noise, which
    cannot be drawn for some images of a batch. No rank gets less than two of a full batch's
    `images`.
    """
    noisy = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in network.modules())
    whole = [task.name for task in recipe.tasks if noisy or not task.divisible()]
    work = {task.name: _work(task) for task in recipe.tasks}
    return deal(recipe.names, size, work, whole, most=max(images // 2, 1))


def _work(task: Task) -> int:
    try:
        return task.passes().work
    except ValueError:
        return UNKNOWN
