"""Teachers that a recipe does not have are refused, with a suggestion."""

from __future__ import annotations

import pytest

from allrounder.config.time import Clock
from allrounder.errors import RecipeError
from allrounder.recipe.lint import warnings_for
from allrounder.recipe.recipe import Recipe
from tests.support.pipelines import below
from tests.support.trainings import HEAD, MIX, NATURAL

LEARNER = """
[[task]]
name = "linf"
lr = 0.05
[task.objective]
kind = "taught"
base = { kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
natural = { teacher = "TEACHER" }
"""
AVERAGED = LEARNER.replace("lr = 0.05", "lr = 0.05\naverage = 0.9")


def load(*blocks: str, teacher: str) -> Recipe:
    return Recipe.loads("".join((HEAD, *blocks)).replace("TEACHER", teacher))


def refusal(*blocks: str, teacher: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(*blocks, teacher=teacher)
    return str(caught.value)


def test_an_unknown_teacher_is_refused_with_a_suggestion():
    message = refusal(LEARNER, NATURAL, MIX, teacher="natrual")
    assert "objective.natural.teacher" in message
    assert 'no learner is called "natrual"' in message and 'did you mean "natural"?' in message
    assert 'there are: linf, natural, and "global"' in message


def test_a_learner_teaches_itself_only_by_an_average():
    message = refusal(LEARNER, NATURAL, MIX, teacher="linf")
    assert "only by its own average" in message and 'average of the task "linf"' in message
    assert load(AVERAGED, NATURAL, MIX, teacher="linf").names == ("linf", "natural")


def test_the_global_weights_of_a_single_learner_are_an_average_or_refused():
    assert '"global" is the learner itself' in refusal(LEARNER, teacher="global")
    assert load(AVERAGED, teacher="global").tasks[0].average is not None
    assert load(LEARNER, "[mix]\ndecay = 0.9\n", teacher="global").mix is not None
    assert load(LEARNER, NATURAL, MIX, teacher="global").mix is not None


def test_a_stage_of_a_pipeline_without_the_teacher_is_refused():
    base = below("base", NATURAL)
    soup = f'[pipeline]\nkind = "soup"\n[pipeline.base]\nname = "base"\nlength = 0.5\n{base}'
    assert 'no learner is called "natural"' in refusal(soup, LEARNER, NATURAL, teacher="natural")


def test_the_base_is_checked_as_without_teachers():
    with pytest.raises(RecipeError, match=r"objective\.base\.threat: .*8/255"):
        Recipe.loads((HEAD + AVERAGED).replace("Linf:0.1", "Linf:8").replace("TEACHER", "linf"))
    short = (HEAD + AVERAGED).replace("steps = 2", "steps = 2, step = 0.01").replace("TEACHER", "linf")
    (warning,) = warnings_for(Recipe.loads(short), Clock(3, 3))
    assert "the attack of linf moves at most 0.02 budgets" in warning
    late = (HEAD + AVERAGED).replace("TEACHER", "linf")
    late = late.replace('kind = "adversarial", threat', 'kind = "part", warmup = 9, threat')
    with pytest.raises(RecipeError, match=r"objective\.base: warmup is 9, so no mask is ever used"):
        Recipe.loads(late)


def test_the_summary_names_the_teachers():
    text = str(load(AVERAGED, teacher="linf"))
    assert "adversarial under Linf:0.1, taught by linf" in text
