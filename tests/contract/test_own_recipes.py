"""Random-task training, our own method: its recipes differ from those of adversarial training in the method,
the average of the weights and, on MNIST, the step of the attack."""

from __future__ import annotations

import pytest

from allrounder.attacks import Curriculum, RandomOf
from allrounder.config.time import Time
from allrounder.objectives import Adversarial
from allrounder.objectives.random_task import RandomTask
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.threats.threat import AnyOf

FOLDERS = ("cifar10", "cifar100", "svhn", "mnist", "imagenet")
OWN = [
    name
    for name in shipped_recipes()
    if name.startswith(tuple(f"{folder}/random-task" for folder in FOLDERS))
]
CURRICULA = [name for name in OWN if "-curriculum" in name]


def twin(name: str) -> Recipe:
    """Adversarial training on the same data with the same network."""
    return Recipe.load(f"{name.partition('/')[0]}/at-linf{'-wrn' if name.endswith('-wrn') else ''}")


def objective_of(recipe: Recipe) -> RandomTask:
    (task,) = recipe.tasks
    assert isinstance(task.objective, RandomTask)
    return task.objective


def test_every_dataset_has_our_recipe():
    assert {name.partition("/")[0] for name in OWN} == set(FOLDERS)
    assert {name.partition("/")[0] for name in CURRICULA} == {"cifar10", "cifar100", "svhn", "mnist"}
    assert len(OWN) == 19


@pytest.mark.parametrize("name", OWN)
def test_everything_but_the_method_is_that_of_adversarial_training(name: str):
    recipe, other = Recipe.load(name), twin(name)
    (task,), (at,) = recipe.tasks, other.tasks
    assert (task.optimizer, task.lr, task.augment) == (at.optimizer, at.lr, at.augment)
    for field in ("data", "model", "epochs", "batch_size", "seed", "pace", "probes", "validation"):
        assert getattr(recipe, field) == getattr(other, field), field
    assert task.average == Recipe.load("embedded/random-task").tasks[0].average


@pytest.mark.parametrize("name", OWN)
def test_it_trains_under_the_threats_of_the_folder(name: str):
    objective, folder = objective_of(Recipe.load(name)), name.partition("/")[0]
    assert objective.threats()[0] == twin(name).tasks[0].objective.threats()[0]
    if "-linf" in name:
        assert len(objective.threats()) == 1 and objective.natural_share == 0.5
    else:
        l2 = Recipe.load(f"{folder}/at-l2").tasks[0].objective.threats()
        assert isinstance(objective.threat, AnyOf) and objective.threats()[1:] == l2
        assert objective.natural_share == (0.1 if name in CURRICULA or folder == "imagenet" else 0.2)


@pytest.mark.parametrize("name", CURRICULA)
def test_a_curriculum_is_that_of_the_embedded_recipe(name: str):
    recipe = Recipe.load(name)
    kind = "random-task-curriculum-l2" if name.startswith("mnist/") else "random-task-curriculum"
    embedded = objective_of(Recipe.load(f"embedded/{kind}"))
    attack = objective_of(recipe).attack
    assert isinstance(attack, RandomOf) and attack == embedded.attack
    assert isinstance(attack.attack, Curriculum) and attack.attack.at == Time.parse("80%")


@pytest.mark.parametrize("name", [name for name in OWN if name not in CURRICULA])
def test_other_attacks_are_those_of_the_embedded_recipes(name: str):
    kind = "random-task-linf" if "-linf" in name else "random-task"
    attack = objective_of(Recipe.load(name)).attack
    if name.startswith("imagenet/"):
        at = twin(name).tasks[0].objective
        assert isinstance(at, Adversarial) and attack == RandomOf(attack=at.attack)
    else:
        assert attack == objective_of(Recipe.load(f"embedded/{kind}")).attack
