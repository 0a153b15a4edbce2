"""Performing programs: one file for each, over the same way to train a phase."""

from __future__ import annotations

from allrounder.data.base import Data
from allrounder.recipe.pipeline import Curve, SelfTraining, WeightSoup
from allrounder.recipe.recipe import Recipe
from allrounder.training.pipelines.base import Stage
from allrounder.training.pipelines.mode_connectivity import choose_point
from allrounder.training.pipelines.self_training import check_dealt, self_train
from allrounder.training.pipelines.soup import stir

__all__ = ["Stage", "check", "perform"]


def check(recipe: Recipe, data: Data) -> None:
    """Raise RecipeError where a program cannot be performed with such data."""
    if isinstance(recipe.program, SelfTraining):
        check_dealt(recipe, data, recipe.program.hidden)


def perform(stage: Stage) -> None:
    """Carry out a recipe's program, or go on with it, to the final weights in its run folder."""
    match stage.recipe.program:
        case Curve() as program:
            choose_point(stage, program)
        case WeightSoup() as program:
            stir(stage, program)
        case SelfTraining() as program:
            self_train(stage, program)
        case other:
            raise AssertionError(f"{other} is performed nowhere")
