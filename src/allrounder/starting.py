"""The network every learner starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.errors import RecipeError
from allrounder.init import FromRun, Init, Soup
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.runs import Run, check_fits
from allrounder.weights import Weights, blend_, copy_, weights_of, zeros_like


def starting_network(recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data) -> nn.Module:
    """Drawn from the seed, then overwritten where the recipe starts from other runs."""
    with Draws(recipe.seed).at("init").ambient():
        network = model() if model is not None else _built(recipe, data)
    members = [(run, Run(Path(run)).weights(which)[0]) for run, which in _sources(recipe.init)]
    for run, weights in members:
        check_fits(run, weights, network)
    if members:
        copy_(weights_of(network), soup([weights for _, weights in members]))
    return network


def _built(recipe: Recipe, data: Data) -> nn.Module:
    try:
        return recipe.model.build(len(data.classes), data.shape)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"model: {error}") from error


def soup(members: Sequence[Mapping[str, Tensor]]) -> Weights:
    """The plain average of several sets of weights of one network."""
    total = zeros_like(members[0])
    for number, member in enumerate(members, start=1):
        blend_(total, member, decay=1 - 1 / number)
    return total


def _sources(init: Init) -> list[tuple[str, str]]:
    match init:
        case FromRun(run=run, which=which):
            return [(run, which)]
        case Soup(runs=runs, which=which):
            return [(run, which) for run in runs]
        case _:
            return []
