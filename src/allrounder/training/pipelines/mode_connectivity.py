"""Robust mode connectivity: the most robust network of a curve between two."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from allrounder.data.base import Split
from allrounder.errors import Interrupted
from allrounder.evaluation.evaluate import evaluate
from allrounder.evaluation.probes import Probe
from allrounder.nn.batchnorm import recalibrated
from allrounder.nn.state import Weights, bezier, weights_of
from allrounder.recipe.pipeline import CURVE, Curve
from allrounder.rng import Draws
from allrounder.system.signals import stop_on_signals
from allrounder.training.model_selection import split_off
from allrounder.training.pipelines.base import Stage


def choose_point(stage: Stage, program: Curve) -> None:
    """Train both ends and the bend, measure points of the curve, and keep the best; the first, of equals."""
    ends, curve = [stage.train(phase.name) for phase in program.end], stage.train(CURVE)
    recipe, network, world = stage.recipe, stage.network(), stage.world
    train, held_out = split_off(recipe, stage.data)
    tested = stage.data.test if recipe.validation.on == "test" else held_out
    assert tested is not None, "a recipe without them is refused"

    @cache
    def corners() -> tuple[Weights, Weights, Weights]:
        """The ends of the curve and its bend between them."""
        first, second = (run.weights(program.which)[0] for run in ends)
        return first, curve.weights()[0], second

    def point(place: float) -> Weights:
        """phi(place), with batch-norm statistics of its own."""
        draws = Draws(recipe.seed).at("recalibrate")
        theta = bezier(place, *corners())
        images = program.images or len(train)
        return recalibrated(theta, network, train, draws, recipe.batch, images, world.tick)

    logged = world.meet("the places", stage.logged("point") if world.chief else None)[0]
    found = {event["place"]: event for event in logged}
    with stop_on_signals() as stop:
        for place in places(program.points):
            if place not in found:
                stage.made(f"place {place:g}", weights_of(network), partial(point, place))
                found[place] = {"place": place, **_accuracies(stage, network, tested)}
                if world.chief:
                    stage.run.log("point", **found[place])
            for signal in filter(None, world.meet(f"after place {place:g}", stop.signal)):
                told = f"{signal} after place {place:g} of the curve; continue with --resume"
                raise Interrupted(f"{stage.run.folder}: {told}")
    if not world.chief:
        return
    best = max(found.values(), key=lambda event: (event[program.choose], event["natural"], -event["place"]))
    theta = point(best["place"])
    measured = {key: best[key] for key in ("place", "natural", "robust")}
    told = {**measured, "score": best[program.choose], "selected_on": recipe.validation.on}
    bend, card = curve.weights()
    stage.finish({"global": theta, recipe.names[0]: bend}, card, told)


def places(count: int) -> list[float]:
    """So many places, evenly from 0 to 1."""
    return [number / (count - 1) for number in range(count)]


def _accuracies(stage: Stage, network: Any, split: Split) -> dict[str, Any]:
    recipe = stage.recipe
    probes = [Probe("validation", recipe.validation.attack, threat) for threat in recipe.selection_threats]
    outcome = evaluate(network, split, probes=probes, seed=recipe.seed, check="skip", world=stage.world)
    robust = {str(probe.threat): outcome.accuracy("validation", str(probe.threat)) for probe in probes}
    worst, mean = outcome.worst("validation"), outcome.mean("validation")
    return {"natural": outcome.accuracy(), "robust": robust, "worst": worst, "mean": mean}
