"""Run pipelines, which are methods of several trainings: one file per pipeline."""

from __future__ import annotations

from allrounder.data.base import Data
from allrounder.recipe.pipeline import ModeConnectivity, SelfTraining, WeightSoup
from allrounder.recipe.recipe import Recipe
from allrounder.training.pipelines.base import PipelineContext
from allrounder.training.pipelines.mode_connectivity import train_mode_connectivity
from allrounder.training.pipelines.self_training import check_enough_images, self_train
from allrounder.training.pipelines.soup import train_soup

__all__ = ["PipelineContext", "check_pipeline", "run_pipeline"]


def check_pipeline(recipe: Recipe, data: Data) -> None:
    """Raise RecipeError if a recipe's pipeline cannot run on this dataset."""
    if isinstance(recipe.pipeline, SelfTraining):
        check_enough_images(recipe, data, recipe.pipeline.hidden)


def run_pipeline(context: PipelineContext) -> None:
    """Run or resume a recipe's pipeline until its final weights are in its run folder."""
    match context.recipe.pipeline:
        case ModeConnectivity() as pipeline:
            train_mode_connectivity(context, pipeline)
        case WeightSoup() as pipeline:
            train_soup(context, pipeline)
        case SelfTraining() as pipeline:
            self_train(context, pipeline)
        case other:
            raise AssertionError(f"no function runs the pipeline {other}")
