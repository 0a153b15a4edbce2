"""Recipes that trade natural for robust accuracy: the papers' common setting, and each method's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allrounder.attacks import EarlyStopPgd, Pgd
from allrounder.config.schedules import Step
from allrounder.config.time import Clock, Time
from allrounder.models.resnet import PreActResNet18, ResNet18
from allrounder.models.wide_resnet import WideResNet
from allrounder.objectives import Fat, HalfHalf, Iat, Mart, Objective, Score, Trades
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Context
from tests.support.offenders import for_each

RISING = Step(at=tuple(map(Time.parse, (0, "125/3%", "75%"))), to=(0, 1, 2))
METHODS = ("half-half", "trades-1", "trades-6", "mart", "fat", "iat", "score")


def objective_of(
    method: str, threat: str, step: float, *, steps: int = 10, lam: float = 5, clip: float = 0
) -> Objective:
    """The objective of a method with the values of its sources."""
    near, within = Pgd(steps=steps, step=step, start="gaussian"), Threat.parse(threat)
    match method:
        case "half-half":
            return HalfHalf(threat=within, beta=0.5, attack=Pgd(steps=steps, step=step))
        case "mart":
            return Mart(threat=within, lam=lam, attack=near)
        case "fat":
            return Fat(threat=within, attack=EarlyStopPgd(steps=steps, step=step, omega=0.001), tau=RISING)
        case "iat":
            return Iat(threat=within, alpha=1, attack=Pgd(steps=steps, step=step))
        case "score":
            return Score(threat=within, beta=6, clip=clip, attack=replace(near, loss="lse-drift"))
        case _:
            return Trades(
                threat=within, beta=float(method.partition("-")[2]), attack=replace(near, loss="kl")
            )


NETWORKS = {"": 5, "-wrn": 6}
"""What follows a name that contains the network, and MART's lam for it."""
COMMON: dict[str, tuple[str, Objective]] = {
    **{
        f"{data}/{method}{wide}": (
            f"{data}/at-linf{wide}",
            objective_of(method, "Linf:8/255", 0.25, lam=lam),
        )
        for data in ("cifar10", "cifar100")
        for wide, lam in NETWORKS.items()
        for method in METHODS
    },
    **{
        f"embedded/{method}": ("embedded/at-linf", objective_of(method, "Linf:0.1", 0.25))
        for method in METHODS
    },
    "cifar10/trades-matched": ("cifar10/at-linf", objective_of("trades-0.2", "Linf:8/255", 0.25)),
    "mnist/trades": ("mnist/at-linf", objective_of("trades-6", "Linf:0.3", 0.1)),
    "mnist/fat": ("mnist/at-linf", objective_of("fat", "Linf:0.3", 0.1)),
    "svhn/trades": ("svhn/at-linf", objective_of("trades-6", "Linf:8/255", 0.25)),
    "svhn/fat": ("svhn/at-linf", objective_of("fat", "Linf:8/255", 0.25)),
}
"""By name: the recipe it differs from by nothing but its objective, and the objective."""
OWN: dict[str, tuple[Objective, type[Any], float, dict[int, float]]] = {
    "cifar10/trades-official": (
        *(objective_of("trades-6", "Linf:0.031", 7 / 31), WideResNet, 2e-4),
        {1: 0.1, 74: 0.1, 75: 0.01, 76: 0.01},
    ),
    "cifar10/mart-official": (
        *(objective_of("mart", "Linf:0.031", 7 / 31), ResNet18, 3.5e-3),
        {1: 0.01, 74: 0.01, 75: 1e-3, 89: 1e-3, 90: 1e-4, 99: 1e-4, 100: 1e-5, 120: 1e-5},
    ),
    "cifar10/mart-wrn-official": (
        *(objective_of("mart", "Linf:0.031", 7 / 31, lam=6), WideResNet, 7e-4),
        {1: 0.1, 74: 0.1, 75: 0.01, 89: 0.01, 90: 0.001},
    ),
    "cifar10/fat-official": (
        *(objective_of("fat", "Linf:0.031", 7 / 31), WideResNet, 2e-4),
        {1: 0.1, 59: 0.1, 60: 0.01, 89: 0.01, 90: 1e-3, 109: 1e-3, 110: 5e-4, 120: 5e-4},
    ),
    "cifar10/iat-official": (
        *(objective_of("iat", "Linf:8/255", 0.25, steps=7), ResNet18, 2e-4),
        {1: 0.1, 99: 0.1, 100: 0.01, 149: 0.01, 150: 0.001, 200: 0.001},
    ),
    "cifar10/score-official": (
        *(objective_of("score", "Linf:8/255", 0.25, clip=0.3), PreActResNet18, 5e-4),
        {1: 0.05, 100: 0.05, 101: 5e-3, 105: 5e-3, 106: 5e-4, 110: 5e-4},
    ),
}
"""By name: objective, network, weight decay, and rates of first steps by epoch, the last epoch included."""


def test_these_recipes_are_shipped_and_no_others_of_their_methods():
    kinds = ("half-half", "trades", "mart", "fat", "iat", "score")
    names = {name for name in shipped_recipes() if name.partition("/")[2].startswith(kinds)}
    # Those of 200 epochs are held to these by the tests of the papers' tables.
    named = {name for name in names if not name.endswith("-200")}
    assert named == COMMON.keys() | OWN.keys() | {"mnist/half-half-fgsm", "embedded/half-half-taught"}


@for_each(COMMON)
def test_a_recipe_in_the_common_setting_differs_from_at_by_its_objective_alone(name: str):
    base, objective = COMMON[name]
    recipe, at = Recipe.load(name), Recipe.load(base)
    expected = replace(at.tasks[0], objective=objective)
    assert recipe == replace(at, tasks=(expected,), name=recipe.name, about=recipe.about)


def test_half_half_with_one_signed_step_is_that_of_goodfellow():
    recipe, at = Recipe.load("mnist/half-half-fgsm"), Recipe.load("mnist/at-linf")
    one_step = Pgd(steps=1, step=1, start="zero")
    objective = HalfHalf(threat=Threat.parse("Linf:0.25"), beta=0.5, attack=one_step)
    assert recipe.tasks == (replace(at.tasks[0], objective=objective),)
    shown = {"name": at.name, "about": at.about, "probes": at.probes}
    assert replace(recipe, tasks=at.tasks, **shown) == at


@for_each(OWN)
def test_an_official_recipe_has_the_methods_own_setting(name: str):
    objective, network, decay, rates = OWN[name]
    recipe = Recipe.load(name)
    clock, task = Clock(recipe.epochs, 6, recipe.pace), recipe.tasks[0]
    assert task.objective == objective
    assert isinstance(recipe.model, network)
    assert task.optimizer == Sgd(momentum=0.9, weight_decay=decay)
    assert {epoch: task.lr(clock.schedule_step(epoch * 6 - 5), clock) for epoch in rates} == pytest.approx(
        rates
    )
    assert recipe.epochs == max(rates)
    assert (recipe.batch_size, task.average, recipe.mix) == (128, None, None)


def test_the_rate_of_score_falls_in_the_last_step_of_an_epoch_as_released():
    recipe = Recipe.load("cifar10/score-official")
    clock, lr = Clock(recipe.epochs, 6, recipe.pace), recipe.tasks[0].lr
    for epoch, before, after in ((100, 0.05, 5e-3), (105, 5e-3, 5e-4)):
        rates = [lr(clock.schedule_step(t), clock) for t in (6 * epoch - 1, 6 * epoch)]
        assert rates == pytest.approx([before, after])


@for_each(name for name in (*COMMON, *OWN) if name.partition("/")[2].startswith("fat"))
def test_the_written_tau_is_the_default_one(name: str):
    recipe = Recipe.load(name)
    objective, clock = recipe.tasks[0].objective, Clock(recipe.epochs, 2, recipe.pace)
    assert isinstance(objective, Fat)
    assert objective.effective_attack == replace(EarlyStopPgd(), step=objective.effective_attack.step)
    for t in range(1, clock.total_steps + 1):
        ctx = Context(t, clock, Rng(0), {})
        assert objective.tau_at(ctx) == replace(objective, tau=None).tau_at(ctx)
