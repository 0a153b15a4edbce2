"""Fit an ensemble of a natural and a robust run, and save it as a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from allrounder.errors import RunError
from allrounder.experiments.combined_run import check_free, save_combined_run
from allrounder.experiments.ensemble import FittedEnsemble, fit_ensemble
from allrounder.experiments.finished_runs import FinishedRuns
from allrounder.models.ensemble import EnsembleModel
from allrounder.nn.state import clone, weights_of
from allrounder.system.processes import use_threads
from allrounder.threats.threat import Threat
from allrounder.training.run import load


def dial_outputs(
    natural: str | Path,
    robust: str | Path,
    out: str | Path,
    *,
    attack: str = "cw",
    threats: Sequence[Threat | str] = (),
    tolerance: float = 0.02,
    n: int | None = None,
) -> FittedEnsemble:
    """Fit an ensemble of two runs on the images that both held out, and save it as a finished run.

    By default, the threats are those that the runs select their best weights by. The recipe of the new run is
    that of the robust one with another model.
    """
    check_free(Path(out))
    runs = FinishedRuns.open([natural, robust])
    against = list(threats) or list(runs.threats)
    if not against:
        raise RunError(f"{natural} and {robust}: no threat is known; name one, such as Linf:8/255")
    first, second = runs.runs.values()
    recipe = second.recipe
    with use_threads(1):
        fitted = fit_ensemble(
            load(first),
            load(second),
            runs.held_out,
            threats=against,
            attack=attack,
            tolerance=tolerance,
            n=n,
            seed=recipe.seed,
        )
    mix = fitted.ensemble.mix
    words = ", ".join(f"{key} {number:.4g}" for key, number in asdict(cast(Any, mix)).items())
    labels = " and ".join(run.recipe.name or label for label, run in runs.runs.items())
    combined = replace(
        recipe,
        model=EnsembleModel(natural=first.recipe.model, robust=recipe.model, mix=mix),
        name=f"ensemble of {labels}",
        about=f"Outputs of {labels} mixed after training by allrounder dial: {words}",
    )
    facts = {
        "mixture": asdict(cast(Any, mix)),
        "sources": runs.describe(),
        "networks": combined.model.num_networks,
    }
    point = fitted.measured
    measured = {
        **asdict(point),
        "score": point.score,
        "images": min(n or len(runs.held_out), len(runs.held_out)),
    }
    t = max(facts["t"] for facts in runs.facts.values())
    weights = clone(weights_of(fitted.ensemble))
    save_combined_run(Path(out), combined, weights, runs.data.dataset, measured, facts, t)
    return fitted
