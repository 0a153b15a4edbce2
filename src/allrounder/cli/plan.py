"""The command that predicts what a training takes: plan."""

from __future__ import annotations

from typing import Annotated

import typer

from allrounder.cli.train import Overrides, RecipeName


def plan(
    recipe: RecipeName,
    sets: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, after one warm-up step.")] = 3,
) -> None:
    """Measure a few steps of a recipe and predict its time, memory, disk space and communication."""
    from allrounder.cli.planning import print_plan

    print_plan(recipe, tuple(sets or ()), steps)
