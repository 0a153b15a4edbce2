"""The network every learner starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.errors import RecipeError
from allrounder.init import Init
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.runs import Run, check_fits
from allrounder.weights import Weights, blend_, copy_, weights_of, zeros_like


def starting_network(
    recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data, beside: Path = Path()
) -> nn.Module:
    """Drawn from the seed, then overwritten where the recipe starts from other runs.

    `beside` is the folder in which the run's own folder lies.
    """
    with Draws(recipe.seed).at("init").ambient():
        network = model() if model is not None else _built(recipe, data)
    members = members_of(recipe.init, beside)
    for (run, _), weights in zip(recipe.init.sources(beside), members, strict=True):
        check_fits(run, weights, network)
    if members:
        copy_(weights_of(network), soup(members))
    return network


def members_of(init: Init, beside: Path) -> list[Weights]:
    """The weights that a starting point is the average of; none of a fresh one."""
    return [Run(run).weights(which)[0] for run, which in init.sources(beside)]


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
