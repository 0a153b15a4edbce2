"""The network every learner starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.errors import RunError
from allrounder.init import FromRun, Init, Soup
from allrounder.recipe import Recipe
from allrounder.rng import Draws
from allrounder.runs import Run
from allrounder.weights import Weights, blend_, copy_, weights_of, zeros_like


def starting_network(recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data) -> nn.Module:
    """Drawn from the seed, then overwritten where the recipe starts from other runs."""
    with Draws(recipe.seed).at("init").ambient():
        network = model() if model is not None else recipe.model.build(len(data.classes), data.shape)
    members = _members(recipe.init)
    if members:
        live = weights_of(network)
        average = soup(list(members.values()))
        for run in members:
            _check_fits(run, average, live)
        copy_(live, average)
    return network


def soup(members: Sequence[Mapping[str, Tensor]]) -> Weights:
    """The plain average of several sets of weights of one network."""
    total = zeros_like(members[0])
    for number, member in enumerate(members, start=1):
        blend_(total, member, decay=1 - 1 / number)
    return total


def _members(init: Init) -> dict[str, Weights]:
    match init:
        case FromRun(run=run, which=which):
            return {run: Run(Path(run)).weights(which)[0]}
        case Soup(runs=runs, which=which):
            return {run: Run(Path(run)).weights(which)[0] for run in runs}
        case _:
            return {}


def _check_fits(run: str, weights: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    odd = sorted(weights.keys() ^ live.keys())
    odd += sorted(name for name in weights.keys() & live.keys() if weights[name].shape != live[name].shape)
    if odd:
        raise RunError(
            f"{run}: holds another network, {odd[0]} does not fit; start from a run of the same model"
        )
