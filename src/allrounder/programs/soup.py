"""Weight soups: the average of separately fine-tuned networks."""

from __future__ import annotations

from allrounder.program import WeightSoup
from allrounder.programs.base import Stage
from allrounder.recalibration import recalibrated
from allrounder.rng import Draws
from allrounder.selection import split_off
from allrounder.starting import soup


def stir(stage: Stage, program: WeightSoup) -> None:
    """Train the base and every member, and average the members' last weights."""
    recipe = stage.recipe
    stage.train(program.base.name)
    found = {name: stage.train(name).weights() for name in recipe.names}
    members = {name: weights for name, (weights, _) in found.items()}
    shares = [program.shares.get(name, 1.0) for name in recipe.names]
    theta = soup(list(members.values()), shares)
    if program.buffers == "recalibrate":
        split, _ = split_off(recipe, stage.data)
        draws = Draws(recipe.seed).at("recalibrate")
        theta = recalibrated(theta, stage.network(), split, draws, recipe.batch)
    card = found[recipe.names[-1]][1]
    stage.finish({"global": theta, **members}, card, stage.measured(theta, card["t"]))
