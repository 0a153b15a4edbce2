"""Measure candidate networks after the trainings of a pipeline, to select one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import nn

from allrounder.errors import Interrupted
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.nn.state import weights_of
from allrounder.system.signals import stop_on_signals
from allrounder.training.pipelines.base import PipelineContext
from allrounder.types import Weights

Candidate: TypeAlias = tuple[dict[str, Any], Callable[[], Weights]]
"""What describes a network, such as its position on a curve, and a function that computes its weights."""


def measure_candidates(
    context: PipelineContext, network: nn.Module, candidates: Sequence[Candidate]
) -> list[dict[str, Any]]:
    """Return every candidate's description with its accuracies on the validation images.

    Each is logged as a "point", and those that an earlier session logged are not measured again. The weights
    of `network` are overwritten. All ranks call it together.
    """
    world = context.world
    logged = context.logged_events("point") if world.is_main else None
    earlier: list[dict[str, Any]] = world.all_gather_object("the points", logged)[0]
    points: list[dict[str, Any]] = []
    with stop_on_signals() as stop:
        for number, (description, compute) in enumerate(candidates, 1):
            matching = (event for event in earlier if description.items() <= event.items())
            point = next(matching, None)
            if point is None:
                context.broadcast_from_main(f"point {number}", weights_of(network), compute)
                point = {**description, **_measure_accuracies(context, network)}
                if world.is_main:
                    context.run.log("point", **point)
            points.append(point)
            for signal in filter(None, world.all_gather_object(f"after point {number}", stop.signal)):
                place = f"after point {number} of {len(candidates)}"
                raise Interrupted(f"{context.run.folder}: {signal} {place}; continue with --resume")
    return points


def _measure_accuracies(context: PipelineContext, network: nn.Module) -> dict[str, Any]:
    recipe, split = context.recipe, context.data.validation
    assert split is not None, "the recipe's checks require validation images"
    probes = [Probe("validation", recipe.validation.attack, threat) for threat in recipe.selection_threats]
    options = EvalOptions(check="skip", world=context.world)
    outcome = evaluate(network, split, probes=probes, seed=recipe.seed, options=options)
    return {
        "natural": outcome.accuracy(),
        "robust": {str(p.threat): outcome.accuracy("validation", str(p.threat)) for p in probes},
        "worst": outcome.worst("validation"),
        "mean": outcome.mean("validation"),
    }
