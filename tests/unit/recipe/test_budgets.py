"""Budgets and steps that are too large are found in every part of a recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allrounder.errors import RecipeError
from allrounder.objectives import Adversarial
from allrounder.recipe.budgets import budget_problems
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.threats.threat import Threat
from tests.support.offenders import for_each


def refusals(name: str, *sets: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(name, sets)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@for_each(shipped_recipes())
def test_shipped_recipes_have_sensible_budgets(name: str):
    recipe = Recipe.load(name)
    for stage in recipe.stage_recipes().values():
        assert list(budget_problems(stage.tasks, stage.validation, stage.probes, (1, 28, 28))) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task.linf.objective.threat", "Linf:8"),
        ("validation.threats", "['Linf:8']"),
        ("validation.also", "['Linf:8']"),
        ("probes", "['pgd-20@Linf:8']"),
    ],
)
def test_a_forgotten_denominator_is_suggested_where_it_is_missing(field: str, value: str):
    (line,) = refusals("cifar10/at-linf", f"{field}={value}")
    assert line.startswith(field) and line.endswith("did you mean Linf:8/255?")


def test_a_budget_is_compared_with_the_shape_of_a_published_dataset_when_the_recipe_is_read():
    sets = ["task.l2.objective.threat=L2:128", "validation.also=['L1:769']", "probes=['pgd-20@Linf:0.51']"]
    l2, l1, linf = refusals("cifar10/at-l2", *sets)
    assert l2.startswith("task.l2.objective.threat: L2:128: expected a budget of at most 13.86, because ")
    assert l2.endswith("did you mean L2:128/255?")
    assert l1.startswith("validation.also: L1:769: expected a budget of at most 768, because ")
    assert linf.startswith("probes.0: Linf:0.51: expected a budget of at most 0.5, because ")


def test_every_threat_of_a_method_with_several_is_checked():
    (line,) = refusals("cifar10/avg-linf-l2", "task.avg.objective.against=['Linf:8/255', 'L2:128']")
    assert line.startswith("task.avg.objective.against: L2:128: ")
    (line,) = refusals("cifar10/max-linf-l2", "task.max.objective.threat=['Linf:8/255', 'L2:128']")
    assert line.startswith("task.max.objective.threat: L2:128: ")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("embedded/at-linf", "task.linf.objective.attack.step"),
        ("embedded/at-linf", "validation.attack.step"),
        ("embedded/msd-linf-l2", "task.msd.objective.attack.l2_step"),
        ("embedded/max-linf-l2", "task.max.objective.attack.attack.step"),
        ("embedded/fast-at", "task.linf.update.probe.step"),
    ],
)
def test_a_step_longer_than_two_budgets_is_refused(name: str, field: str):
    (line,) = refusals(name, f"{field}=2.01")
    assert line.startswith(f"{field}: got 2.01, expected at most 2: it is a fraction of the budget")
    Recipe.load(name, [f"{field}=2"])


def test_stages_of_a_pipeline_are_checked():
    (line,) = refusals("cifar10/rmc", "pipeline.end.0.task.0.objective.threat=L2:128")
    assert "L2:128: expected a budget of at most 13.86" in line


def test_a_recipe_made_in_python_is_checked_too():
    recipe = Recipe.load("cifar10/at-linf")
    objective = Adversarial(threat=Threat.parse("Linf:0.6"))
    with pytest.raises(
        ValueError, match=r"task.0.objective.threat\n.*Linf:0.6: expected a budget of at most"
    ):
        replace(recipe, tasks=(replace(recipe.tasks[0], objective=objective),))
