"""Weight soups: the average of separately fine-tuned networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from allrounder.nn.state import average_weights, clone, weights_of
from allrounder.recipe.pipeline import ChooseShares, WeightSoup
from allrounder.training.mixer import recalibrate
from allrounder.training.pipelines.base import PipelineContext
from allrounder.training.pipelines.selection import measure_candidates
from allrounder.types import Weights


def train_soup(context: PipelineContext, pipeline: WeightSoup) -> None:
    """Train the base and every member, and save an average of the members' last weights."""
    recipe = context.recipe
    context.train_stage(pipeline.base.name)
    runs = {name: context.train_stage(name) for name in recipe.names}

    @cache
    def members() -> dict[str, Weights]:
        """Load the weights of the members, which only rank 0 can."""
        return {name: run.weights()[0] for name, run in runs.items()}

    def average_members(shares: Mapping[str, float]) -> Weights:
        """Average the members with a share."""
        used = [name for name in recipe.names if shares[name] > 0]
        theta = average_weights([members()[name] for name in used], [shares[name] for name in used])
        if pipeline.buffers == "average":
            return theta
        network, train, heartbeat = context.new_network(), context.data.train, context.world.heartbeat
        return recalibrate(theta, network, train, recipe.seed, recipe.batch_size, heartbeat=heartbeat)

    scores: dict[str, Any] = {}
    shares = {name: pipeline.shares.get(name, 1.0) for name in recipe.names}
    if pipeline.choose is not None:
        scores = _measure_best(context, pipeline.choose, average_members)
        shares = scores["shares"]
    target = clone(weights_of(context.new_network()))
    theta = context.broadcast_from_main("the soup", target, partial(average_members, shares))
    scores = scores or context.measure(theta)
    if context.world.is_main:
        stage_facts = runs[recipe.names[-1]].weights()[1]
        context.finish({"global": theta, **members()}, stage_facts, scores)


def _measure_best(
    context: PipelineContext, choose: ChooseShares, average_members: Callable[[Mapping[str, float]], Weights]
) -> dict[str, Any]:
    """Measure all combinations of shares; return the shares and accuracies of the first of the best."""
    combinations = choose.combinations(context.recipe.names)
    candidates = [({"shares": shares}, partial(average_members, shares)) for shares in combinations]
    points = measure_candidates(context, context.new_network(), candidates)
    best = max(points, key=lambda point: (point[choose.by], point["natural"]))
    scores = {key: best[key] for key in ("shares", "natural", "robust")}
    return scores | {"score": best[choose.by], "selected_on": context.recipe.validation.on}
