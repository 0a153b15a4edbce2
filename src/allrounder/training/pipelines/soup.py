"""Weight soups: the average of separately fine-tuned networks."""

from __future__ import annotations

from allrounder.nn.batchnorm import recalibrated
from allrounder.nn.state import Weights, snapshot, weights_of
from allrounder.recipe.pipeline import WeightSoup
from allrounder.rng import Draws
from allrounder.training.model_selection import split_off
from allrounder.training.pipelines.base import Stage
from allrounder.training.starting import soup


def stir(stage: Stage, program: WeightSoup) -> None:
    """Train the base and every member, and average the members' last weights."""
    recipe = stage.recipe
    stage.train(program.base.name)
    runs = {name: stage.train(name) for name in recipe.names}

    def stirred() -> Weights:
        shares = [program.shares.get(name, 1.0) for name in recipe.names]
        theta = soup([run.weights()[0] for run in runs.values()], shares)
        if program.buffers == "average":
            return theta
        split, draws = split_off(recipe, stage.data)[0], Draws(recipe.seed).at("recalibrate")
        return recalibrated(theta, stage.network(), split, draws, recipe.batch, tick=stage.world.tick)

    theta = stage.made("the soup", snapshot(weights_of(stage.network())), stirred)
    told = stage.measured(theta)
    if stage.world.chief:
        members = {name: run.weights()[0] for name, run in runs.items()}
        card = runs[recipe.names[-1]].weights()[1]
        stage.finish({"global": theta, **members}, card, told)
