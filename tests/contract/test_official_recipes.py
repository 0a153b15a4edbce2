"""Recipes in the settings of methods' authors, written down once more, where no other test has them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from allrounder.attacks import ApgdTrain, PerNorm, Pgd, WorstOf
from allrounder.config.time import Clock
from allrounder.models.resnet import PreActResNet18
from allrounder.models.wide_resnet import WideResNet
from allrounder.objectives import Adversarial
from allrounder.objectives.average import Average
from allrounder.objectives.e_at import Eat
from allrounder.objectives.logit_pairing import LogitPairing
from allrounder.optim import Agr, Awp
from allrounder.optim.base import Descend
from allrounder.optim.optimizers import Sgd
from allrounder.optim.ramp_projection import GradientProjection
from allrounder.recipe.init import FromRun
from allrounder.recipe.pipeline import ModeConnectivity, WeightSoup
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat

LINF, L2, L1 = (Threat.parse(text) for text in ("Linf:8/255", "L2:80/255", "L1:12"))
MARGIN = PerNorm(
    linf=Pgd(steps=10, step=2.5 / 10, loss="margin"),
    l2=Pgd(steps=40, step=2.5 / 40, loss="margin", start="boundary"),
)
"""The attack of Tramer and Boneh (2019): steps of 2.5 eps / T."""
STEPS = 6


def rates(recipe: Recipe, *parts: str) -> list[float]:
    """The learning rate in the steps that end at some parts of the run."""
    clock = Clock(recipe.epochs, STEPS, recipe.pace)
    ends = [max(1, int(Fraction(part) * clock.total_steps)) for part in parts]
    return [recipe.tasks[0].lr(clock.schedule_step(t), clock) for t in ends]


@pytest.mark.parametrize("name", ["cifar10/avg-linf-l2-official", "cifar10/max-linf-l2-official"])
def test_avg_and_max_climb_the_margin_with_steps_of_their_own_in_each_norm(name: str):
    recipe = Recipe.load(name)
    (task,) = recipe.tasks
    if "avg" in name:
        assert task.objective == Average(against=(LINF, L2), attack=MARGIN)
    else:
        assert isinstance(task.objective, Adversarial)
        assert task.objective.threats() == (LINF, L2) and task.objective.attack == WorstOf(attack=MARGIN)
    assert recipe.epochs == round(80_000 * 128 / 50_000)
    assert rates(recipe, "1/4", "5/8", "7/8") == [0.1, 0.01, 0.001]
    assert task.optimizer == Sgd(momentum=0.9, weight_decay=2e-4)


@pytest.mark.parametrize("name", ["cifar10/e-at-finetune", "cifar10/ramp-finetune"])
def test_fine_tuning_takes_three_epochs_from_a_trained_network(name: str):
    recipe, base = Recipe.load(name), Recipe.load("cifar10/at-linf-preact")
    (task,) = recipe.tasks
    assert recipe.init == FromRun(run="runs/at-linf-preact")
    assert recipe.model == base.model == PreActResNet18(activation="softplus")
    assert recipe.epochs == 3 and rates(recipe, "1/6", "1/2", "5/6") == [0.05, 0.005, 0.0005]
    assert task.optimizer == Sgd(momentum=0.9, weight_decay=5e-4) and task.update == Descend()
    if "ramp" in name:
        assert task.objective == LogitPairing(source=LINF, target=L1, attack=ApgdTrain(steps=10), lam=1.5)
    else:
        assert task.objective == Eat(against=(LINF, L1), attack=ApgdTrain(steps=10))


def test_the_network_to_fine_tune_is_trained_in_one_norm_as_e_at_in_two():
    recipe, scratch = Recipe.load("cifar10/at-linf-preact"), Recipe.load("cifar10/e-at-official")
    (task,), (other,) = recipe.tasks, scratch.tasks
    assert replace(task, name=other.name, objective=other.objective) == other
    assert task.objective == Adversarial(threat=LINF, attack=ApgdTrain(steps=10))
    assert (recipe.epochs, recipe.model) == (scratch.epochs, scratch.model)


def test_wide_ramp_has_the_first_term_of_trades_and_a_triangular_rate():
    recipe = Recipe.load("cifar10/ramp-wrn-official")
    (task,) = recipe.tasks
    attack = ApgdTrain(steps=10)
    assert task.objective == LogitPairing(
        source=LINF, target=L1, attack=attack, lam=2, variant="trades", beta=6
    )
    assert task.update == GradientProjection(beta=0.5)
    assert recipe.model == WideResNet(depth=28, widen=10) and recipe.epochs == 30
    low, peak, falling = rates(recipe, "1/180", "2/5", "7/10")
    assert low < 0.002 and peak == pytest.approx(0.1, rel=0.02) and falling == pytest.approx(0.05, rel=0.02)


def test_rmc_with_l1_has_an_l1_end_and_searches_three_norms():
    recipe, two = Recipe.load("cifar10/rmc-l1-official"), Recipe.load("cifar10/rmc-official")
    assert isinstance(recipe.pipeline, ModeConnectivity) and isinstance(two.pipeline, ModeConnectivity)
    assert [end.name for end in recipe.pipeline.end] == ["linf", "l1"]
    (l1,) = recipe.pipeline.end[1].tasks
    assert l1.objective.threats() == (L1,)
    assert recipe.pipeline.end[0] == two.pipeline.end[0]
    assert [str(threat) for threat in recipe.tasks[0].objective.threats()] == ["Linf:8/255", "L2:1", "L1:12"]
    assert recipe.epochs == two.epochs


@pytest.mark.parametrize("folder", ["cifar10", "cifar100", "embedded"])
def test_a_soup_with_chosen_shares_differs_in_the_choice_alone(folder: str):
    chosen, plain = Recipe.load(f"{folder}/soup-chosen"), Recipe.load(f"{folder}/soup")
    assert isinstance(chosen.pipeline, WeightSoup) and chosen.pipeline.choose is not None
    assert chosen.pipeline.choose.by == "worst"
    same = replace(chosen.pipeline, choose=None)
    assert replace(chosen, pipeline=same, name=plain.name, about=plain.about) == plain


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("network", ["", "-wrn"])
def test_fast_at_in_the_common_setting_differs_from_at_by_its_objective_alone(data: str, network: str):
    recipe, at = Recipe.load(f"{data}/fast-at{network}"), Recipe.load(f"{data}/at-linf{network}")
    one_step = Adversarial(threat=LINF, attack=Pgd(steps=1, step=1.25), norm_layers="train")
    assert recipe.tasks == (replace(at.tasks[0], objective=one_step),)
    assert replace(recipe, tasks=at.tasks, name=at.name, about=at.about) == at


@pytest.mark.parametrize(("method", "update"), [("agr", Agr), ("awp-at", Awp)])
def test_natural_images_pass_in_official_recipes_only(method: str, update: type[Agr] | type[Awp]):
    for name in (f"cifar10/{method}", f"cifar10/{method}-wrn", f"cifar100/{method}", f"embedded/{method}"):
        used = Recipe.load(name).tasks[0].update
        assert isinstance(used, update) and not used.natural_pass
    official = Recipe.load(f"cifar10/{method}-official").tasks[0].update
    assert isinstance(official, update) and official.natural_pass
