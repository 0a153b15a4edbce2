"""What the papers say, written down once more, and that the shipped recipes say the same."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from allrounder.attacks.pgd import Pgd
from allrounder.config.time import Clock
from allrounder.models.wide_resnet import WideResNet
from allrounder.objectives import Adversarial, Natural
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.mix import Shares
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.recipe.task import Task
from tests.support.offenders import for_each
from tests.support.paths import PROJECT

GUIDE = PROJECT / "docs" / "guide" / "reproduce.md"
LEARNERS = {
    "nt": ("natural",),
    "at-linf": ("linf",),
    "at-l2": ("l2",),
    "generalist-d-nt-linf": ("linf", "natural"),
    "generalist-d-linf-l2": ("linf", "l2"),
    "generalist-t": ("linf", "natural", "l2"),
}
METHODS = list(LEARNERS)
GENERALISTS = [method for method in METHODS if method.startswith("generalist")]


class PaperValues(NamedTuple):
    """One line of the papers' protocol."""

    model: str
    epochs: int
    rate: float
    """The first rate of adversarial learners; that of natural ones is 0.1 everywhere."""
    decay: float
    """Weight decay of adversarial learners."""
    natural_decay: float
    linf: float
    l2: float
    steps: int
    linf_step: float
    """In image units."""
    exchanges: range
    """The epochs that end with one."""


E, FIFTH = 1 / 255, range(75, 121, 5)
PAPER_VALUES = {
    # Generalist++ IV-B, V-B; CVPR appendix A.1
    "cifar10": PaperValues("ResNet18", 120, 0.01, 3.5e-3, 5e-4, 8 * E, 128 * E, 10, 2 * E, FIFTH),
    "cifar10-wrn": PaperValues("WideResNet", 120, 0.1, 7e-4, 5e-4, 8 * E, 128 * E, 10, 2 * E, FIFTH),
    "cifar100": PaperValues("ResNet18", 120, 0.01, 3.5e-3, 5e-4, 8 * E, 128 * E, 10, 2 * E, FIFTH),
    "cifar100-wrn": PaperValues("WideResNet", 120, 0.1, 7e-4, 5e-4, 8 * E, 128 * E, 10, 2 * E, FIFTH),
    # A.1 and A.3; t' in its place in the run, ADR 0014
    "cifar100-200": PaperValues(
        "ResNet18", 200, 0.01, 3.5e-3, 5e-4, 8 * E, 128 * E, 10, 2 * E, range(128, 201, 8)
    ),
    # A.2; L2 and the Linf step are ours
    "mnist": PaperValues("ResNet18", 120, 0.01, 3.5e-3, 5e-4, 0.3, 2.0, 10, 0.03, FIFTH),
    "svhn": PaperValues("ResNet18", 120, 0.01, 3.5e-3, 5e-4, 8 * E, 128 * E, 10, 2 * E, FIFTH),
    # Generalist++ IV-C
    "imagenet": PaperValues("ResNet50", 240, 0.01, 1e-4, 2e-4, 4 * E, 64 * E, 3, 1 * E, range(150, 241, 10)),
    "imagenet-wrn": PaperValues(
        "WideResNet50", 240, 0.1, 1e-4, 2e-4, 4 * E, 64 * E, 3, 1 * E, range(150, 241, 10)
    ),
}
NAMES = {
    f"{line.partition('-')[0]}/{method}{line.removeprefix(line.partition('-')[0])}": (line, method)
    for line in PAPER_VALUES
    for method in METHODS
}
BEYOND = {f"cifar10/generalist-{mixture}" for mixture in ("msd-nt", "nt-trades", "four")}
"""Mixtures that the papers do not have."""
PLAIN = [name for name in NAMES if NAMES[name][1] in GENERALISTS]
AVERAGED = {f"{name}-averaged": name for name in (*PLAIN, *sorted(BEYOND))}
RELEASED = {
    f"cifar10/{method}{network}-released": f"cifar10/{method}{network}"
    for method in GENERALISTS
    for network in ("", "-wrn")
}
LITERAL = {f"{name}-literal": name for name in PLAIN if PAPER_VALUES[NAMES[name][0]].epochs != 120}
TWINS = {**AVERAGED, **RELEASED, **LITERAL}
"""By name, the recipe that each of the other forms of a Generalist differs from."""
FALL = {1: 1, 40: 1, 50: 0.55, 60: 0.1, 90: 0.055, 120: 0.01}
"""A.1: flat to epoch 40, a tenth at 60, a hundredth at 120, linear between; as factors, by epochs of 120."""
SHARE = {1: 1, 40: 1, 80: 1, 100: 0.5, 110: 0.25, 120: 0}
"""CVPR 4.2.1: (1, 1, 1, 0) at epochs 0, 40, 80, 120."""
SEVERAL_NORMS = ("avg-linf-l2", "max-linf-l2", "msd-linf-l2", "e-at", "e-at-linf-l2", "ramp")
"""Baselines that train against several norms at once, in the papers' common setting."""
UNIFIED = {
    f"{data}/{method}{network}": f"{data}/at-linf{network}"
    for data in ("cifar10", "cifar100")
    for method in SEVERAL_NORMS
    for network in ("", "-wrn")
}
BASELINES = (
    *(
        "half-half",
        "trades",
        "mart",
        "fat",
        "iat",
        "rst",
        "score",
        "agr",
        "part",
        "awp",
        "fast",
        "random-task",
    ),
    *("avg", "max", "msd", "e-at", "ramp", "rmc", "soup", "at-salman", "at-linf-preact"),
)
"""Other methods, whose values other tests check."""
STEPS = 6
"""Of an epoch, so that a third of a run of 200 epochs is a whole number of steps."""


def clock_of(recipe: Recipe) -> Clock:
    return Clock(recipe.epochs, STEPS, recipe.pace)


def moment(recipe: Recipe, epoch: int) -> tuple[int, Clock]:
    """The end of an epoch of 120, or the step as far in a longer run; and a clock that reads there."""
    return epoch * recipe.epochs * STEPS // 120, Clock(recipe.epochs, STEPS, "step")


def rates(recipe: Recipe, task: Task) -> dict[int, float]:
    return {epoch: task.lr(*moment(recipe, epoch)) for epoch in FALL}


def shares(recipe: Recipe, epoch: int) -> dict[str, float]:
    return recipe.effective_mix.shares_at(*moment(recipe, epoch), recipe.names)


def restarts(recipe: Recipe) -> list[int]:
    clock = clock_of(recipe)
    return [t for t in range(1, clock.total_steps + 1) if recipe.effective_mix.exchange_due(t, clock)]


def test_these_recipes_are_shipped_and_no_others():
    papers = {name for name in shipped_recipes() if not name.startswith(("embedded/", "small/"))}
    others = {name for name in papers if name.partition("/")[2].startswith(BASELINES)}
    assert papers - others == NAMES.keys() | TWINS.keys() | BEYOND
    assert UNIFIED.keys() <= others


@for_each(NAMES)
def test_the_protocol_is_that_of_the_papers(name: str):
    paper, recipe = PAPER_VALUES[NAMES[name][0]], Recipe.load(name)
    assert type(recipe.model).__name__ == paper.model
    assert not isinstance(recipe.model, WideResNet) or (recipe.model.num_blocks(), recipe.model.widen) == (
        5,
        10,
    )
    assert (recipe.epochs, recipe.batch_size, recipe.pace) == (paper.epochs, 128, "epoch")
    assert recipe.names == LEARNERS[NAMES[name][1]]
    probes = [(probe.name, probe.threat.norm.name, probe.threat.eps) for probe in recipe.probes]
    budgets = (("Linf", paper.linf), ("L2", paper.l2))
    assert probes == [(attack, *budget) for budget in budgets for attack in ("pgd-20", "aa")]
    assert recipe.validation.on == "validation" and recipe.validation.attack == Pgd(steps=20, step=0.25)


@for_each(NAMES)
def test_learners_are_trained_as_in_the_papers(name: str):
    paper, recipe = PAPER_VALUES[NAMES[name][0]], Recipe.load(name)
    for task in recipe.tasks:
        natural = task.name == "natural"
        decay, first = (paper.natural_decay, 0.1) if natural else (paper.decay, paper.rate)
        assert task.optimizer == Sgd(momentum=0.9, weight_decay=decay)
        expected = {epoch: first * factor for epoch, factor in FALL.items()}
        assert rates(recipe, task) == pytest.approx(expected)
        if natural:
            assert isinstance(task.objective, Natural)
            continue
        assert isinstance(task.objective, Adversarial) and isinstance(task.objective.attack, Pgd)
        (threat,) = task.objective.threats()
        attack = task.objective.attack
        assert (threat.norm.name, threat.eps) == (
            ("Linf", paper.linf) if task.name == "linf" else ("L2", paper.l2)
        )
        length = paper.linf_step if task.name == "linf" else paper.l2 / 4
        assert attack.step * threat.eps == pytest.approx(length)
        assert (attack.steps, attack.loss, attack.start) == (paper.steps, "ce", "random")
        assert task.objective.norm_layers == "eval"


@for_each(UNIFIED)
def test_baselines_of_several_norms_differ_from_adversarial_training_in_their_objective_alone(name: str):
    recipe, plain = Recipe.load(name), Recipe.load(UNIFIED[name])
    (task,), (simple,) = recipe.tasks, plain.tasks
    assert {(threat.norm.name, threat.eps) for threat in task.objective.threats()} <= {
        ("Linf", 8 * E),
        ("L2", 128 * E),
        ("L1", 12),
    }
    same = replace(task, name=simple.name, objective=simple.objective, update=simple.update)
    assert same == simple
    assert recipe.passes().work > plain.passes().work
    shown = {"about": plain.about, "name": plain.name, "probes": plain.probes}
    assert replace(recipe, tasks=plain.tasks, validation=plain.validation, **shown) == plain


@for_each(NAMES)
def test_digits_are_not_mirrored(name: str):
    digits = name.startswith(("mnist/", "svhn/"))
    assert {task.augment.flip for task in Recipe.load(name).tasks} == {not digits}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@for_each(PLAIN)
def test_learners_are_mixed_as_in_the_papers(name: str):
    """Algorithms 1 and 2: the learners' weights are mixed, not averages of them."""
    paper, recipe = PAPER_VALUES[NAMES[name][0]], Recipe.load(name)
    clock, mix = clock_of(recipe), recipe.effective_mix
    assert [task.average for task in recipe.tasks] == [None] * len(recipe.tasks)
    assert mix.decay(1, clock) == mix.decay(clock.total_steps, clock) == 0.999
    others = recipe.names[1:]
    for epoch, lead in SHARE.items():
        expected = {"linf": lead, **{other: (1 - lead) / len(others) for other in others}}
        assert shares(recipe, epoch) == pytest.approx(expected)
    assert restarts(recipe) == [epoch * STEPS for epoch in paper.exchanges]
    assert mix.exchange is not None and (mix.exchange.momentum, mix.exchange.averages) == ("keep", "keep")


@for_each(name for name in NAMES if NAMES[name][1] not in GENERALISTS)
def test_baselines_are_one_plain_learner(name: str):
    recipe = Recipe.load(name)
    assert recipe.mix is None
    assert [task.average for task in recipe.tasks] == [None]


@for_each(AVERAGED)
def test_an_averaged_twin_has_averages_of_the_learners_and_nothing_else_is_changed(name: str):
    recipe, plain = Recipe.load(name), Recipe.load(TWINS[name])
    bare = tuple(replace(task, average=None) for task in recipe.tasks)
    assert replace(recipe, tasks=bare) == replace(plain, name=recipe.name, about=recipe.about)
    for task in recipe.tasks:
        assert task.average is not None and task.average(9, clock_of(recipe)) == 0.999


@for_each(LITERAL)
def test_a_literal_twin_exchanges_every_5_epochs_from_epoch_75_on_and_nothing_else_is_changed(name: str):
    recipe, plain = Recipe.load(name), Recipe.load(TWINS[name])
    assert recipe.epochs in (200, 240)
    assert restarts(recipe) == [epoch * STEPS for epoch in range(75, recipe.epochs + 1, 5)]
    assert recipe.mix is not None and plain.mix is not None
    same = replace(recipe.mix, exchange=plain.mix.exchange)
    assert replace(recipe, mix=same) == replace(plain, name=recipe.name, about=recipe.about)


@for_each(RELEASED)
def test_a_released_twin_repeats_the_choices_of_the_released_code(name: str):
    recipe, plain = Recipe.load(name), Recipe.load(TWINS[name])
    clock, wide = clock_of(recipe), "-wrn" in name
    # (1, 1, 0.1, 0.01) or, of WRN, 0.05, at epochs 0, 40, 80, 120; the natural learner's rate is overwritten.
    factors = {1: 1, 40: 1, 50: 0.775, 60: 0.55, 90: 0.0875 if wide else 0.0775, 120: 0.05 if wide else 0.01}
    for task, papers in zip(recipe.tasks, plain.tasks, strict=True):
        first = 0.1 if wide else 0.01
        assert rates(recipe, task) == pytest.approx({epoch: first * part for epoch, part in factors.items()})
        assert task.optimizer == papers.optimizer
        assert task.average is not None
        assert [task.average(t, clock) for t in (1, 2, 3, 9000)] == pytest.approx([0.1, 2 / 11, 0.25, 0.999])
        if isinstance(task.objective, Adversarial) and task.name == "linf":
            attack = task.objective.attack
            assert isinstance(attack, Pgd) and attack.steps == 10
            (threat,) = task.objective.threats()
            assert (threat.eps, attack.step * 0.031) == pytest.approx((0.031, 0.007))
        else:
            assert task.objective == papers.objective
    assert [shares(recipe, epoch)["linf"] for epoch in (80, 85, 100, 120)] == pytest.approx(
        [1, 0.925, 0.7, 0.4]
    )
    assert isinstance(recipe.effective_mix.shares, Shares) and isinstance(plain.effective_mix.shares, Shares)
    assert recipe.effective_mix.shares.rest == plain.effective_mix.shares.rest
    assert recipe.effective_mix.decay(1, clock) == pytest.approx(0.1)
    due = [epoch for epoch in FIFTH for _ in range(STEPS)]
    assert [clock.epoch(t) for t in restarts(recipe)] == due
    assert recipe.validation.on == "test" and recipe.validation.attack == Pgd(steps=10, step=7 / 31)
    assert {str(probe) for probe in recipe.probes} == {
        *(str(probe) for probe in plain.probes),
        "pgd-20@Linf:0.031",
        "aa@Linf:0.031",
    }
    assert (recipe.model, recipe.epochs, recipe.batch_size) == (plain.model, plain.epochs, plain.batch_size)


def test_the_guide_names_every_recipe():
    text = GUIDE.read_text(encoding="utf-8")
    assert not [name for name in (*NAMES, *RELEASED, *LITERAL) if f"`{name}`" not in text]
    assert "`-averaged`" in text
