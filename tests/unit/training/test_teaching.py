"""Teachers of a training: when they get new weights, from whom, and that an interruption changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from allrounder.nn.state import clone
from allrounder.training.learner import Learner
from allrounder.training.planning import plan
from allrounder.training.trainer import Trainer
from tests.reference.taught import refresh_step
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import blobs, same, tiny
from tests.support.trainings import HEAD, MIX, NATURAL, go, recipe, remains

TAUGHT = """
[[task]]
name = "linf"
lr = 0.05
average = 0.7
augment = { kind = "crop-flip", pad = 1 }
[task.objective]
kind = "taught"
base = { kind = "half-half", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
natural = { teacher = "natural", weight = 0.7, temperature = 2 }
adversarial = { teacher = "linf", weight = 0.5 }
refresh = 0.7
"""
PAIR = HEAD + TAUGHT + NATURAL + MIX
GLOBAL = ('teacher = "linf"', 'teacher = "global"')
ALONE = (HEAD + TAUGHT).replace('natural = { teacher = "natural"', 'natural = { teacher = "global"')
PERIOD = 2
"""The steps of 0.7 epochs of three steps."""


def expected_teachers(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    weights = {learner.task.name: clone(learner.averaged_weights()) for learner in trainer.learners}
    return weights | {"global": clone(trainer.mixer.global_weights())}


@pytest.mark.parametrize("text", [PAIR, PAIR.replace(*GLOBAL), ALONE])
def test_a_teacher_has_the_weights_of_the_last_refresh(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As its teachers gave them to the mix, before the exchange that follows the same step."""
    history: dict[int, dict[str, dict[str, Tensor]]] = {}
    seen: dict[int, dict[str, dict[str, Tensor]]] = {}
    update, step = Trainer.step_learners, Learner.step

    def update_and_record(trainer: Trainer, t: int) -> None:
        history.setdefault(0, expected_teachers(trainer))
        update(trainer, t)
        history[t] = expected_teachers(trainer)

    def record_and_step(learner: Learner, batch: object, t: int, augmented: object) -> object:
        if learner.teachers:
            seen[t] = {name: clone(dict(net.state_dict())) for name, net in learner.teachers.items()}
        return step(learner, batch, t, augmented)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Trainer, "step_learners", update_and_record)
    monkeypatch.setattr(Learner, "step", record_and_step)
    go(recipe(text), tmp_path / "run")
    assert sorted(seen) == list(range(1, 10))
    for t, networks in seen.items():
        newest = history[refresh_step(t, PERIOD)]
        assert all(same(weights, newest[name]) for name, weights in networks.items()), t
    taken = [refresh_step(t, PERIOD) for t in seen]
    assert taken == [0, 0, 2, 2, 4, 4, 6, 6, 8], "some steps lie between refreshes"


@pytest.mark.parametrize("text", [PAIR, PAIR.replace(*GLOBAL), ALONE])
def test_a_run_that_was_killed_between_refreshes_is_the_uninterrupted_run(text: str, tmp_path: Path):
    """Checkpoints come every two steps and at the end: with these periods also between two refreshes."""
    value = recipe(text.replace("refresh = 0.7", "refresh = 1"))
    whole = remains(go(value, tmp_path / "whole").folder)
    learners = len(value.tasks)
    for t in (3, 5, 8):
        with struck(Point(STEP, learners * t), give_up), pytest.raises(Killed):
            go(value, tmp_path / f"{t}")
        assert remains(go(value, tmp_path / f"{t}", resume=True).folder) == whole


def test_teachers_change_the_result_of_their_learner_only(tmp_path: Path):
    without_exchange = PAIR.replace("exchange = { start = 1, every = 1 }", "")
    taught = go(recipe(without_exchange), tmp_path / "taught")
    never = go(recipe(without_exchange, ("refresh", "ramp = 0\nrefresh")), tmp_path / "never")
    assert same(taught.weights("natural")[0], never.weights("natural")[0])
    assert not same(taught.weights("linf")[0], never.weights("linf")[0])


def test_a_ramp_of_zero_trains_the_base_bit_for_bit(tmp_path: Path):
    base = """objective = { kind = "half-half", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }"""
    plain = TAUGHT[: TAUGHT.index("[task.objective]")] + base
    never = go(recipe(PAIR, ("refresh", "ramp = 0\nrefresh")), tmp_path / "never")
    expected = go(recipe(HEAD + plain + NATURAL + MIX), tmp_path / "plain")
    for which in ("global", "linf", "natural"):
        assert same(never.weights(which)[0], expected.weights(which)[0])


def test_a_learner_without_teachers_holds_and_saves_none(tmp_path: Path):
    trained = go(recipe(PAIR), tmp_path / "run")
    (checkpoint,) = sorted(trained.folder.glob("checkpoints/step-*"))[-1:]
    files = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    weights = sum(tensor.nbytes for tensor in trained.weights()[0].values())
    names = {name: size for name, size in files.items() if "manifest" not in name}
    assert max(names.values()) - min(names.values()) > 2 * weights, names


def test_a_plan_counts_the_teachers():
    made = plan(recipe(PAIR), steps=1, model=tiny, data=blobs(48))
    assert made.refreshes == 4, "after steps 2, 4, 6 and 8 of 9"
    costs = made.learners
    weights = costs[0].held["weights"]
    assert costs[0].held["teachers"] == 2 * weights and "teachers" not in costs[1].held
    assert str(costs[0].passes) == "6/4", "two of PGD, two of half-half, and one of each teacher"


def test_teachers_in_half_precision_see_what_the_network_sees(tmp_path: Path):
    value = recipe(PAIR, ("[validation]", "compute = { precision = 'bf16' }\n[validation]"))
    run = go(value, tmp_path / "run")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.weights("linf")[0].values())
