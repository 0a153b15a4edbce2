"""Shares that are chosen on held-out images."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from allrounder.cli.run_train import describe_plan
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.nn.mixing.chosen import THETA, Chosen
from allrounder.recipe.recipe import Recipe
from allrounder.training.planning import plan
from allrounder.training.record import RunRecord
from allrounder.training.run import Run
from allrounder.training.share_choice import choose_shares
from allrounder.training.trainer import Trainer
from allrounder.types import Weights
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, go, recipe

WORLD = World(0, 1, torch.device("cpu"))
SHARED = 'shares = { lead = "linf", curve = 0.6 }'


def chosen(rule: str = 'rule = { kind = "chosen", grid = 4 }', *sets: tuple[str, str]) -> Recipe:
    return recipe(PAIR, ("decay = 0.8", rule), (SHARED, ""), *sets)


def trainer_of(value: Recipe, out: Path) -> Trainer:
    run = Run.open_or_create(out, value, resume=False)
    return Trainer(value, run, tiny, blobs(48), WORLD)


def fit_to(
    trainer: Trainer, target: Weights, monkeypatch: pytest.MonkeyPatch, measured: list[Weights]
) -> None:
    """Replace the score by the negative distance from some weights."""

    def score(theta: Weights) -> float:
        measured.append(theta)
        return -math.fsum(float((theta[name] - tensor).norm()) for name, tensor in target.items())

    monkeypatch.setattr(trainer.selection, "score", score)


def draw_states(trainer: Trainer) -> None:
    for seed, state in enumerate(trainer.mixer.states.values()):
        generator = torch.Generator().manual_seed(seed)
        for key, tensor in state.items():
            if key.startswith(THETA) and tensor.is_floating_point() and "running" not in key:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))


@pytest.mark.parametrize(("groups", "networks"), [("none", 1 + 5), ("layers", 1 + 3 * 5)])
def test_the_best_shares_of_the_grid_are_found(
    groups: str, networks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = trainer_of(
        chosen(f'rule = {{ kind = "chosen", grid = 4, groups = "{groups}" }}'), tmp_path / "run"
    )
    rule, states = trainer.mix.rule, trainer.mixer.states
    assert isinstance(rule, Chosen)
    draw_states(trainer)
    best = {"conv": 0.25, "bn": 1.0, "linear": 0.0} if groups == "layers" else {"all": 0.25}
    target = {
        name: best[rule.group_of(name)] * states["linf"][THETA + name]
        + (1 - best[rule.group_of(name)]) * states["natural"][THETA + name]
        for name, _ in trainer.learners[0].model.named_parameters()
    }
    measured: list[Weights] = []
    fit_to(trainer, target, monkeypatch, measured)
    facts = choose_shares(rule, trainer.mixer, trainer.selection, lambda theta: theta)
    assert {group: shares["linf"] for group, shares in facts["shares"].items()} == best
    assert facts["networks"] == len(measured) == networks
    theta = trainer.mixer.global_weights()
    assert all(torch.allclose(theta[name], tensor, atol=1e-6) for name, tensor in target.items())
    again = choose_shares(rule, trainer.mixer, trainer.selection, lambda theta: theta)
    assert again["shares"] == facts["shares"], "the shares in force are measured first, so ties keep them"


def test_a_group_that_all_learners_have_in_common_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = trainer_of(chosen('rule = { kind = "chosen", grid = 4, groups = "layers" }'), tmp_path / "run")
    measured: list[Weights] = []
    fit_to(trainer, {}, monkeypatch, measured)
    assert isinstance(trainer.mix.rule, Chosen)
    facts = choose_shares(trainer.mix.rule, trainer.mixer, trainer.selection, lambda theta: theta)
    assert facts["networks"] == 1, "all learners still have the initial weights"
    assert facts["shares"]["conv"] == {"linf": 0.5, "natural": 0.5}


def test_the_choice_is_logged_with_its_cost_and_the_shares_of_epochs_follow(tmp_path: Path):
    run = go(chosen(), tmp_path / "run")
    events = RunRecord.read(run.folder).events
    choices = [event for event in events if event["event"] == "shares"]
    assert [event["t"] for event in choices] == [3, 6]
    for event in choices:
        assert event["networks"] == 6 and sum(event["shares"]["all"].values()) == pytest.approx(1)
        # PGD with 2 steps on 12 held-out images: 1 forward, then at most 3 forwards and 2 backwards.
        assert event["forwards"] >= 6 * 12 * 3 and event["backwards"] == 6 * 12 * 2
    logged = {(e["epoch"], e["learner"]): e["share"] for e in events if e["event"] == "epoch"}
    assert logged[1, "linf"] == logged[1, "natural"] == 0.5
    for epoch, event in zip((2, 3), choices, strict=True):
        assert {name: logged[epoch, name] for name in ("linf", "natural")} == event["shares"]["all"]


def test_the_score_is_that_of_the_validation_and_selects_nothing(tmp_path: Path):
    trainer = trainer_of(chosen(), tmp_path / "run")
    trainer.fit(until=2)
    theta = trainer.global_weights()
    score = trainer.selection.score(theta)
    assert trainer.selection.best is None
    assert trainer.selection.measure(theta, 2)["score"] == score


def test_a_plan_counts_the_choices():
    result = plan(chosen(), steps=1, model=tiny, data=blobs(48), world=WORLD)
    assert result.choice is not None and result.choice.images == 12 and result.exchanges == 2
    assert result.seconds == replace(result, choice=None).seconds + 2 * result.choice.seconds
    lines = [*describe_plan(result, datetime(2026, 1, 1))]
    assert [line for line in lines if line.startswith("shares: chosen at 2 exchanges, each at most ")]
    without = plan(recipe(), steps=1, model=tiny, data=blobs(48), world=WORLD)
    assert without.choice is None


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("images = 0", "mix.rule: measures held-out images, but validation.images is 0; hold out"),
        ('on = "test"', 'mix.rule: measures held-out images, but validation.on is "test"; hold out'),
    ],
)
def test_a_choice_needs_held_out_images(images: str, message: str):
    with pytest.raises(RecipeError, match=message):
        chosen('rule = "chosen"', ("images = 12", images))
