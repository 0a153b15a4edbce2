"""The guard against catastrophic overfitting: when it ends a training, and what is left then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from allrounder.attacks import Pgd
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.distributed import BatchShard
from allrounder.errors import RecipeError
from allrounder.objectives import Adversarial, Natural
from allrounder.optim import CatastrophicOverfittingGuard, Descend
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Context, Passes
from tests.support.networks import Tiny, same
from tests.support.steps import batch
from tests.support.trainings import HEAD, NATURAL, PAIR, go, recipe

CLOCK = Clock(epochs=6, steps_per_epoch=2)
FAST = Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=1, step=1.25), norm_layers="train")


def learner(update: CatastrophicOverfittingGuard | Descend, average: float | None = None) -> Learner:
    with Rng(0).seed_global():
        model = Tiny()
    kept = None if average is None else Constant(value=average)
    task = Task(name="one", objective=FAST, update=update, lr=Constant(value=0.05), average=kept)
    return Learner(task, model, BatchShard(), 0, CLOCK)


def fake_accuracies(monkeypatch: pytest.MonkeyPatch, *accuracies: float) -> list[float]:
    """Let the guard see these accuracies, one at the end of every epoch."""
    left = list(accuracies)

    def next_accuracy(self: CatastrophicOverfittingGuard, step: TrainingStep) -> Tensor:
        return torch.tensor(left.pop(0))

    monkeypatch.setattr(CatastrophicOverfittingGuard, "_probe_accuracy", next_accuracy)
    return left


def live(one: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.params.items()}


def test_without_a_fall_it_is_plain_descent(monkeypatch: pytest.MonkeyPatch):
    fake_accuracies(monkeypatch, 0.5, 0.31, 0.12)
    ours, theirs = learner(CatastrophicOverfittingGuard()), learner(Descend())
    for t in range(1, 7):
        loss = ours.step(batch(), t)
        assert torch.equal(loss.total, theirs.step(batch(), t).total)
        assert loss.parts["stopped"] == 0
    assert same(live(ours), live(theirs))


def test_a_fall_restores_the_weights_of_the_epoch_before_for_good(monkeypatch: pytest.MonkeyPatch):
    left = fake_accuracies(monkeypatch, 0.5, 0.6, 0.3, 0.9)
    one = learner(CatastrophicOverfittingGuard())
    for t in range(1, 5):
        one.step(batch(), t)
    before = live(one)
    one.step(batch(), 5)
    assert not same(live(one), before)
    last = one.step(batch(), 6)
    assert last.parts["stopped"] == 1
    assert same(live(one), before)
    for t in range(7, 13):
        loss = one.step(batch(), t)
        assert float(loss.total) == float(last.total.detach())
        assert loss.parts["accuracy"] == last.parts["accuracy"]
        assert loss.parts["stopped"] == 1
    assert same(live(one), before)
    assert left == [0.9], "a stopped learner is not probed"


def test_exchanged_weights_are_restored(monkeypatch: pytest.MonkeyPatch):
    fake_accuracies(monkeypatch, 0.9, 0.1)
    one = learner(CatastrophicOverfittingGuard())
    for t in (1, 2):
        one.step(batch(), t)
    brought = {name: 0.5 * t if t.is_floating_point() else t for name, t in live(one).items()}
    one.load_global_weights(brought)
    for t in (3, 4):
        one.step(batch(), t)
    assert same(live(one), brought)


def test_an_average_does_not_keep_the_epoch_that_collapsed(monkeypatch: pytest.MonkeyPatch):
    fake_accuracies(monkeypatch, 0.9, 0.1)
    one = learner(CatastrophicOverfittingGuard(), average=0.9)
    for t in (1, 2):
        one.step(batch(), t)
    before = live(one)
    for t in (3, 4):
        assert not same(one.averaged_weights(), before)
        one.step(batch(), t)
    assert same(one.averaged_weights(), before) and one.average is not None
    one.load_global_weights({name: 0.5 * t if t.is_floating_point() else t for name, t in before.items()})
    one.step(batch(), 5)
    for name, tensor in before.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(one.average[name], 0.95 * tensor, msg="later it is an average again")


def test_the_probe_measures_accuracy_in_evaluation_mode():
    with Rng(0).seed_global():
        model = Tiny().train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ctx = Context(2, CLOCK, Rng(1), {})
    given = batch()
    with torch.no_grad():
        right = replace(given, y=model.eval()(given.x).argmax(1))
    model.train()
    wrong = replace(right, y=(right.y + 1) % 3)
    optimizer = Sgd().build(model.parameters())
    weakest, strongest = (Adversarial(threat=Threat.parse(text)) for text in ("Linf:0", "Linf:1"))
    for objective, labelled, low, high in (
        (weakest, right, 1, 1),
        (weakest, wrong, 0, 0),
        (strongest, right, 0, 0.49),
    ):
        step = TrainingStep(model, optimizer, objective, labelled, ctx, lambda model: None)
        assert low <= CatastrophicOverfittingGuard(probe=Pgd(steps=20))._probe_accuracy(step) <= high
    assert model.training and same(dict(model.state_dict()), state)


def test_a_stopped_learner_stays_in_the_mix_and_is_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_accuracies(monkeypatch, 0.9, 0.1)
    plain = recipe(PAIR)
    linf, natural = plain.tasks
    value = replace(
        plain, tasks=(replace(linf, update=CatastrophicOverfittingGuard(), objective=FAST), natural)
    )
    run = go(value, tmp_path / "run")
    epochs = [event for event in run.metrics() if event["event"] == "epoch"]
    shares = [event["stopped"] for event in epochs if event["learner"] == "linf"]
    assert shares[0] == 0 and 0 < shares[1] < 1 and shares[2] == 1
    assert not any("stopped" in event for event in epochs if event["learner"] == "natural")
    assert run.finished


def test_the_probe_adds_passes_at_the_end_of_an_epoch():
    assert CatastrophicOverfittingGuard().passes(FAST) == Passes(2, 2)
    assert CatastrophicOverfittingGuard().epoch_passes(FAST) == Passes(5 + 1, 5)


def test_an_objective_without_threats_is_refused():
    with pytest.raises(RecipeError, match=r"no threat, .*; use descend"):
        Recipe.loads(f"{HEAD}{NATURAL}\nupdate = {{ kind = 'overfit-guard' }}\n")
    assert CatastrophicOverfittingGuard().problems(Natural(), Sgd(), 3)
    assert not CatastrophicOverfittingGuard().problems(FAST, Sgd(), 3)
