"""What a training logs at its exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from allrounder.distributed import World
from allrounder.nn.state import clone
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from allrounder.types import Weights
from tests.support.networks import blobs, tiny
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, PAIR, SOLO, go, recipe

WORLD = World(0, 1, torch.device("cpu"))
EVERY_STEP = ("every = 1 }", 'every = 1, when = "every-step" }')


def exchanges(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.metrics() if event["event"] == "exchange"]


def flat(weights: Weights, names: list[str]) -> torch.Tensor:
    return torch.cat([weights[name].double().reshape(-1) for name in names])


def test_the_drift_is_that_of_the_parameters_before_the_learners_restart(tmp_path: Path):
    value = recipe()
    trainer = Trainer(
        value, Run.open_or_create(tmp_path / "run", value, resume=False), tiny, blobs(48), WORLD
    )
    seen: dict[str, Weights] = {}
    restart = trainer.restart_learners

    def note(theta: Weights) -> None:
        seen["global"] = clone(theta)
        seen.update({learner.task.name: clone(learner.params) for learner in trainer.learners})
        restart(theta)

    trainer.restart_learners = note  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit(until=3)
    names = [name for name, _ in trainer.scratch_model.named_parameters()]
    theta = {key: flat(weights, names) for key, weights in seen.items()}
    (event,) = exchanges(trainer.run)
    assert (event["t"], event["epoch"]) == (3, 1) and event["shares"] == {"linf": 0.6, "natural": 0.4}
    for name in ("linf", "natural"):
        distance = float((theta[name] - theta["global"]).norm())
        assert event["distances"][name] == pytest.approx(distance, rel=1e-12)
    apart = float((theta["linf"] - theta["natural"]).square().sum())
    assert event["drift"] == pytest.approx(0.6 * 0.4 * apart, rel=1e-12) and apart > 0


def test_every_exchange_is_logged_once(tmp_path: Path):
    run = go(recipe(PAIR, ("every = 1 }", "every = 0.7 }")), tmp_path / "run")
    assert [event["t"] for event in exchanges(run)] == [4, 6, 8]


def test_an_epoch_that_exchanges_after_every_step_logs_its_first_exchange(tmp_path: Path):
    run = go(recipe(PAIR, EVERY_STEP), tmp_path / "run")
    assert [(event["t"], event["epoch"]) for event in exchanges(run)] == [(1, 1), (4, 2), (7, 3)]


def test_learners_that_mix_averages_are_measured_by_their_averages(tmp_path: Path):
    averaged = HEAD + LINF + "average = 0.9\n" + NATURAL + "average = 0.9\n" + MIX
    plain, slow = (go(recipe(text), tmp_path / str(len(text))) for text in (PAIR, averaged))
    assert exchanges(slow)[0]["drift"] < exchanges(plain)[0]["drift"], "averages move more slowly"


def test_a_run_without_exchanges_logs_none(tmp_path: Path):
    assert not exchanges(go(recipe(SOLO), tmp_path / "run"))
