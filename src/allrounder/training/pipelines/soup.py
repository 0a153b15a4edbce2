"""Weight soups: the average of separately fine-tuned networks."""

from __future__ import annotations

from allrounder.nn.state import average_weights, clone, weights_of
from allrounder.recipe.pipeline import WeightSoup
from allrounder.training.mixer import recalibrate
from allrounder.training.pipelines.base import PipelineContext
from allrounder.types import Weights


def train_soup(context: PipelineContext, pipeline: WeightSoup) -> None:
    """Train the base and every member, and save the average of the members' last weights."""
    recipe = context.recipe
    context.train_stage(pipeline.base.name)
    runs = {name: context.train_stage(name) for name in recipe.names}

    def average_members() -> Weights:
        shares = [pipeline.shares.get(name, 1.0) for name in recipe.names]
        theta = average_weights([run.weights()[0] for run in runs.values()], shares)
        if pipeline.buffers == "average":
            return theta
        network, train, heartbeat = context.new_network(), context.data.train, context.world.heartbeat
        return recalibrate(theta, network, train, recipe.seed, recipe.batch_size, heartbeat=heartbeat)

    target = clone(weights_of(context.new_network()))
    theta = context.broadcast_from_main("the soup", target, average_members)
    scores = context.measure(theta)
    if context.world.is_main:
        members = {name: run.weights()[0] for name, run in runs.items()}
        stage_facts = runs[recipe.names[-1]].weights()[1]
        context.finish({"global": theta, **members}, stage_facts, scores)
