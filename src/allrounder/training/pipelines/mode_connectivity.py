"""Robust mode connectivity: the most robust network on a curve between two trained networks."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from torch import nn

from allrounder.data.base import Split
from allrounder.errors import RESUME_HINT, Interrupted
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.nn.state import bezier, weights_of
from allrounder.recipe.pipeline import CURVE_STAGE, ModeConnectivity
from allrounder.system.signals import stop_on_signals
from allrounder.training.mixer import recalibrate
from allrounder.training.pipelines.base import PipelineContext
from allrounder.types import Weights


def train_mode_connectivity(context: PipelineContext, pipeline: ModeConnectivity) -> None:
    """Train both end points and the bend, measure points of the curve, and save the first of the best."""
    ends = [context.train_stage(stage.name) for stage in pipeline.end]
    curve = context.train_stage(CURVE_STAGE)
    recipe, world, network = context.recipe, context.world, context.new_network()
    train, validation = context.data.train, context.data.validation
    assert validation is not None, "the recipe's checks require validation images"

    @cache
    def corners() -> tuple[Weights, Weights, Weights]:
        """Load the ends of the curve and the bend between them."""
        first, second = (run.weights(pipeline.which)[0] for run in ends)
        return first, curve.weights()[0], second

    def point_on_curve(position: float) -> Weights:
        """Return phi(position) with recalibrated batch-norm statistics."""
        theta, num_images = bezier(position, *corners()), pipeline.images or len(train)
        return recalibrate(theta, network, train, recipe.seed, recipe.batch_size, num_images, world.heartbeat)

    logged = context.logged_events("point") if world.is_main else None
    points = {event["position"]: event for event in world.all_gather_object("the points", logged)[0]}
    with stop_on_signals() as stop:
        for position in [number / (pipeline.points - 1) for number in range(pipeline.points)]:
            if position not in points:
                compute = partial(point_on_curve, position)
                context.broadcast_from_main(f"point {position:g}", weights_of(network), compute)
                points[position] = {"position": position, **_accuracies(context, network, validation)}
                if world.is_main:
                    context.run.log("point", **points[position])
            for signal in filter(None, world.all_gather_object(f"after point {position:g}", stop.signal)):
                place = f"after point {position:g} of the curve"
                raise Interrupted(f"{context.run.folder}: {signal} {place}; {RESUME_HINT}")
    if not world.is_main:
        return
    best = max(points.values(), key=lambda p: (p[pipeline.choose], p["natural"], -p["position"]))
    theta = point_on_curve(best["position"])
    scores = {key: best[key] for key in ("position", "natural", "robust")}
    scores |= {"score": best[pipeline.choose], "selected_on": recipe.validation.on}
    bend, stage_facts = curve.weights()
    context.finish({"global": theta, recipe.names[0]: bend}, stage_facts, scores)


def _accuracies(context: PipelineContext, network: nn.Module, split: Split) -> dict[str, Any]:
    recipe = context.recipe
    probes = [Probe("validation", recipe.validation.attack, threat) for threat in recipe.selection_threats]
    options = EvalOptions(check="skip", world=context.world)
    outcome = evaluate(network, split, probes=probes, seed=recipe.seed, options=options)
    return {
        "natural": outcome.accuracy(),
        "robust": {str(p.threat): outcome.accuracy("validation", str(p.threat)) for p in probes},
        "worst": outcome.worst("validation"),
        "mean": outcome.mean("validation"),
    }
