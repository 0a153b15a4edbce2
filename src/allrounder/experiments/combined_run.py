"""Save a network that was combined from trained ones as an ordinary run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allrounder.data.base import Data
from allrounder.errors import RunError
from allrounder.recipe.recipe import Recipe
from allrounder.system.files import check_location
from allrounder.training.run import Run
from allrounder.types import Weights


def save_combined_run(
    out: Path,
    recipe: Recipe,
    weights: Weights,
    dataset: Data,
    measured: Mapping[str, Any],
    facts: Mapping[str, Any],
    t: int,
) -> Run:
    """Write a finished run with one event and with equal best and last weights.

    `recipe` says by its name and `about` what the network is, `measured` holds its accuracies on held-out
    images, and `facts` are added to the manifests.
    """
    check_free(out)
    run = Run.open_or_create(out, recipe, resume=False)
    with run.lock():
        run.log("validation", t=t, epoch=recipe.epochs, **measured, selected_on="validation", best=True)
        extra = {} if recipe.extra is None else {"extra": str(recipe.extra)}
        classes = {"classes": list(dataset.classes), "shape": list(dataset.shape), "data": dataset.name}
        metadata = {**classes, **extra, "selected_on": "validation", **facts}
        for which in ("best", "last"):
            run.save_weights(which, t, {"global": weights}, metadata)
    return run


def check_free(out: Path) -> None:
    """Raise RunError unless a folder does not exist, or is empty."""
    check_location(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out}: exists; choose another folder, nothing was changed")
