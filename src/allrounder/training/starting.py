"""The network every learner starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.errors import RecipeError
from allrounder.nn.state import Weights, blend_, copy_, weights_of, zeros_like
from allrounder.recipe.init import Init
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Draws
from allrounder.training.run import Run, check_fits

Members: TypeAlias = list[tuple[Path, Weights]]
"""Run folders and weights of theirs."""


def starting_network(
    recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data, members: Members | None = None
) -> nn.Module:
    """Drawn from the seed, then overwritten by the average of the runs that the recipe starts from."""
    with Draws(recipe.seed).at("init").ambient():
        network = model() if model is not None else _built(recipe, data)
    found = members_of(recipe.init) if members is None else members
    for run, weights in found:
        check_fits(run, weights, network)
    if found:
        copy_(weights_of(network), soup([weights for _, weights in found]))
    return network


def members_of(init: Init, beside: Path = Path()) -> Members:
    """What a starting point is the average of, nothing for a fresh one; `beside` is the folder in which the
    run's own folder lies."""
    return [(run, Run(run).weights(which)[0]) for run, which in init.sources(beside)]


def _built(recipe: Recipe, data: Data) -> nn.Module:
    try:
        return recipe.model.build(len(data.classes), data.shape)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"model: {error}") from error


def soup(members: Sequence[Mapping[str, Tensor]], shares: Sequence[float] | None = None) -> Weights:
    """The average of several sets of weights of one network: plain, or with shares above 0."""
    total, seen = zeros_like(members[0]), 0.0
    for member, share in zip(members, shares or [1.0] * len(members), strict=True):
        seen += share
        blend_(total, member, decay=1 - share / seen)
    return total
