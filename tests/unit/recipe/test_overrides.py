"""Overrides that change a kind leave no defaults of the old kind behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from allrounder.attacks import Mim
from allrounder.errors import RecipeError
from allrounder.models.resnet import ResNet18
from allrounder.models.small_cnn import SmallCnn
from allrounder.objectives import Natural, Trades
from allrounder.optim.optimizers import Adam, Sgd
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat


@pytest.mark.parametrize("text", ["model=resnet18", "model.kind=resnet18", "model={ kind = 'resnet18' }"])
def test_a_bare_kind_is_short_for_a_table_and_has_its_own_defaults(text: str):
    assert Recipe.load("embedded/nt", [text]).model == ResNet18()


def test_the_order_of_overrides_does_not_matter():
    steps = "task.linf.objective.attack.steps=3"
    sets = ["task.linf.objective.threat=L2:1", "task.linf.objective=trades", "task.linf.objective.attack=mim"]
    sets += [steps, "model.width=8", "model=resnet18"]
    for order in (sets, sets[::-1], sets[3:] + sets[:3], sorted(sets)):
        recipe = Recipe.load("embedded/at-linf", order)
        assert recipe.model == ResNet18(width=8)
        assert recipe.tasks[0].objective == Trades(threat=Threat.parse("L2:1"), attack=Mim(steps=3))


def test_another_kind_replaces_the_whole_table():
    recipe = Recipe.load("embedded/at-linf", ["task.linf.objective=natural", "task.linf.optimizer='adam'"])
    assert recipe.tasks[0].objective == Natural() and recipe.tasks[0].optimizer == Adam()
    with pytest.raises(RecipeError, match=r"task.linf.objective.threat: missing; it is required"):
        Recipe.load("embedded/at-linf", ["task.linf.objective=trades"])


def test_the_same_kind_keeps_the_table():
    recipe = Recipe.load("embedded/at-linf")
    assert Recipe.load("embedded/at-linf", ["task.linf.objective=adversarial"]) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model=resnt18", 'model: has unknown kind "resnt18" .*did you mean "resnet18"'),
        ("task.natural.lr=cosin", 'task.natural.lr: has unknown kind "cosin" .*did you mean "cosine"'),
        ("pipeline=sup", "pipeline: expected a table with a kind .*, got 'sup'; did you mean \"soup\""),
    ],
)
def test_an_unknown_kind_is_refused_with_a_suggestion(text: str, message: str):
    with pytest.raises(RecipeError, match=message):
        Recipe.load("embedded/nt", [text])


def load(folder: Path, text: str, base: str = "extends = 'embedded/nt'") -> Recipe:
    (folder / "base.toml").write_text(base, encoding="utf-8")
    (folder / "mine.toml").write_text(f"extends = 'base.toml'\n{text}", encoding="utf-8")
    return Recipe.load(folder / "mine.toml")


def test_a_bare_kind_in_a_file_is_laid_over_an_inherited_table(tmp_path: Path):
    narrow = "extends = 'embedded/nt'\nmodel = { kind = 'small-cnn', width = 4 }"
    assert load(tmp_path, "model = 'resnet18'").model == ResNet18()
    assert load(tmp_path, "model = 'small-cnn'", narrow).model == SmallCnn(width=4)
    assert load(
        tmp_path, "model = { width = 4 }", "extends = 'embedded/nt'\nmodel = 'resnet18'"
    ).model == ResNet18(width=4)
    task = load(tmp_path, "[[task]]\nname = 'natural'\nobjective = 'natural'\noptimizer = 'sgd'").tasks[0]
    assert task.objective == Natural() and isinstance(task.optimizer, Sgd)
    assert task.optimizer.weight_decay == 5e-4


def test_overrides_reach_a_table_that_the_file_writes_as_a_bare_kind(tmp_path: Path):
    load(tmp_path, "model = 'resnet18'")
    assert Recipe.load(tmp_path / "mine.toml", ["model.width=4"]).model == ResNet18(width=4)
    assert Recipe.load(tmp_path / "mine.toml", ["model=small-cnn"]).model == SmallCnn()
