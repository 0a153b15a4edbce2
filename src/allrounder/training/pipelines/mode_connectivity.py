"""Robust mode connectivity: the most robust network on a curve between two trained networks."""

from __future__ import annotations

from functools import cache, partial

from allrounder.nn.state import bezier
from allrounder.recipe.pipeline import CURVE_STAGE, ModeConnectivity
from allrounder.training.mixer import recalibrate
from allrounder.training.pipelines.base import PipelineContext
from allrounder.training.pipelines.selection import measure_candidates
from allrounder.types import Weights


def train_mode_connectivity(context: PipelineContext, pipeline: ModeConnectivity) -> None:
    """Train both end points and the bend, measure points of the curve, and save the first of the best."""
    ends = [context.train_stage(stage.name) for stage in pipeline.end]
    curve = context.train_stage(CURVE_STAGE)
    recipe, world, network = context.recipe, context.world, context.new_network()
    train = context.data.train

    @cache
    def corners() -> tuple[Weights, Weights, Weights]:
        """Load the ends of the curve and the bend between them."""
        first, second = (run.weights(pipeline.which)[0] for run in ends)
        return first, curve.weights()[0], second

    def point_on_curve(position: float) -> Weights:
        """Return phi(position) with recalibrated batch-norm statistics."""
        theta, num_images = bezier(position, *corners()), pipeline.images or len(train)
        return recalibrate(theta, network, train, recipe.seed, recipe.batch_size, num_images, world.heartbeat)

    positions = [number / (pipeline.points - 1) for number in range(pipeline.points)]
    candidates = [({"position": position}, partial(point_on_curve, position)) for position in positions]
    points = measure_candidates(context, network, candidates)
    if not world.is_main:
        return
    best = max(points, key=lambda p: (p[pipeline.choose], p["natural"], -p["position"]))
    theta = point_on_curve(best["position"])
    scores = {key: best[key] for key in ("position", "natural", "robust")}
    scores |= {"score": best[pipeline.choose], "selected_on": recipe.validation.on}
    bend, stage_facts = curve.weights()
    context.finish({"global": theta, recipe.names[0]: bend}, stage_facts, scores)
