"""One learner: what a step does, what it gives and takes, and that its state is all of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data.batches import Batches
from allrounder.distributed import BatchShard
from allrounder.errors import Diverged, ThreatError
from allrounder.nn.state import clone, zeros_like
from allrounder.objectives import Adversarial, Natural
from allrounder.optim.optimizers import Adam, AdamW, Optimizer, Sgd
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Batch, Weights
from tests.support.networks import Tiny, blobs, same
from tests.support.trainings import Forgetful

CLOCK = Clock(3, 4)
NATURAL = Task(name="natural", objective=Natural(), lr=Constant(value=0.1))
LINF = Task(name="linf", objective=Adversarial(threat=Threat.parse("Linf:0.1")), lr=Constant(value=0.1))
OPTIMIZERS = [
    Sgd(momentum=0.9, weight_decay=5e-4),
    Sgd(momentum=0.9, nesterov=True),
    Sgd(momentum=0.0),
    Sgd(weight_decay=5e-4, decay_on="weights"),
    Adam(),
    AdamW(),
]


def learner(task: Task = NATURAL, model: nn.Module | None = None) -> Learner:
    with Rng(1).seed_global():
        return Learner(task, model or Tiny(), BatchShard(), 0, CLOCK)


def batch(t: int) -> Batch:
    return Batches(blobs(48).train, 12, Rng(0)).at(
        CLOCK.epoch(t), t - (CLOCK.epoch(t) - 1) * CLOCK.steps_per_epoch
    )


def walk(who: Learner, first: int, last: int) -> Learner:
    for t in range(first, last + 1):
        who.step(batch(t), t)
    return who


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("task", [NATURAL, LINF], ids=lambda task: task.name)
def test_a_learner_goes_on_from_its_saved_state_to_the_bit(task: Task, optimizer: Optimizer):
    task = replace(task, optimizer=optimizer, average=Constant(value=0.7))
    straight = walk(learner(task, Forgetful()), 1, 3)
    again = learner(task, Forgetful())
    again.load_state_dict(
        {name: tensor.contiguous().clone() for name, tensor in straight.state_dict().items()}
    )
    assert same(again.state_dict(), straight.state_dict())
    assert same(walk(again, 4, 6).state_dict(), walk(straight, 4, 6).state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_restored_state_has_the_memory_layout_of_the_one_that_was_saved(optimizer: Optimizer):
    def wide() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))

    task = replace(NATURAL, optimizer=optimizer, average=Constant(value=0.7))
    straight = walk(learner(task, wide()), 1, 2)
    again = learner(task, wide())
    again.load_state_dict(
        {name: tensor.contiguous().clone() for name, tensor in straight.state_dict().items()}
    )
    assert layouts(again) == layouts(straight)


def layouts(who: Learner) -> dict[str, list[int]]:
    """Strides, but of dimensions of one, where they mean nothing."""
    return {
        name: [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
        for name, tensor in who.state_dict().items()
    }


def test_restoring_a_fresh_state_forgets_momentum():
    fresh, old = learner(), walk(learner(), 1, 2)
    old.load_state_dict(clone(fresh.state_dict()))
    assert same(old.state_dict(), fresh.state_dict())


def test_a_step_is_plain_descent_on_the_prepared_batch():
    who = learner(replace(NATURAL, optimizer=Sgd(momentum=0.0)))
    with Rng(1).seed_global():
        model = Tiny()
    seen = who.prepare_batch(batch(1), 1)
    model.train()
    F.cross_entropy(model(seen.x), seen.y).backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= 0.1 * p.grad
    loss = who.step(batch(1), 1)
    assert loss.total.isfinite()
    for name, tensor in model.state_dict().items():
        assert torch.allclose(who.params[name], tensor, rtol=0, atol=1e-6), name


def test_the_average_follows_its_recursion_and_is_what_the_learner_gives():
    who = learner(replace(NATURAL, average=Constant(value=0.7)))
    expected = clone(who.params)
    for t in (1, 2, 3):
        who.step(batch(t), t)
        for name, tensor in who.params.items():
            expected[name] = (
                0.7 * expected[name] + (1 - 0.7) * tensor if tensor.is_floating_point() else tensor
            )
    given = who.averaged_weights()
    for name, tensor in expected.items():
        assert torch.allclose(given[name], tensor, rtol=0, atol=1e-6), name
    assert not same(given, who.params)


def test_without_an_average_a_learner_gives_its_live_weights():
    who = walk(learner(), 1, 1)
    assert who.averaged_weights() is who.params


def moments(who: Learner) -> list[Tensor]:
    return [state["momentum_buffer"] for state in who.optimizer.state.values()]


@pytest.mark.parametrize("momentum", ["keep", "reset"])
@pytest.mark.parametrize("averages", ["keep", "reset"])
def test_an_exchange_overwrites_weights_and_keeps_or_resets_the_rest(momentum: Any, averages: Any):
    who = walk(learner(replace(NATURAL, average=Constant(value=0.7))), 1, 2)
    assert who.average is not None
    before, average = [tensor.clone() for tensor in moments(who)], clone(who.average)
    new = {name: tensor + 1 for name, tensor in zeros_like(who.params).items()}
    who.load_global_weights(new, momentum, averages)
    assert same(who.params, new)
    assert same(who.average, new if averages == "reset" else average)
    after = moments(who)
    assert after == [] if momentum == "reset" else all(map(torch.equal, before, after))
    who.params["conv.weight"].zero_()
    assert new["conv.weight"].all(), "what was received is not shared"


def test_momentum_that_was_reset_starts_as_if_there_had_been_none():
    who = walk(learner(), 1, 2)
    who.load_global_weights(clone(who.params), momentum="reset")
    fresh = learner()
    fresh.load_global_weights(clone(who.params))
    assert same(walk(who, 3, 4).state_dict(), walk(fresh, 3, 4).state_dict())


def test_the_learning_rate_is_that_of_the_step():
    class Halves:
        def __call__(self, t: int, clock: Clock) -> float:
            return 0.5**t

    who = learner()
    object.__setattr__(who, "task", type("Stub", (), {"lr": Halves()})())
    assert who.lr(1) == 0.5**4, "the pace is by epoch: read at its end"
    assert who.lr(5) == 0.5**8
    real = learner()
    real.step(batch(1), 1)
    assert [group["lr"] for group in real.optimizer.param_groups] == [real.lr(1)]


def test_tasks_of_one_stream_see_the_same_images_and_others_do_not():
    one, twin, other = (
        learner(replace(task, augment_stream=stream))
        for task, stream in ((NATURAL, "shared"), (LINF, "shared"), (LINF, "other"))
    )
    x = [who.prepare_batch(batch(3), 3).x for who in (one, twin, other)]
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])
    assert not torch.equal(one.prepare_batch(batch(3), 3).x, one.prepare_batch(batch(3), 4).x)


def test_smoothing_reaches_the_loss_and_not_the_attack(monkeypatch: pytest.MonkeyPatch):
    labels: list[Tensor] = []
    smoothings: list[float] = []
    attack, loss = Adversarial.craft, Adversarial.loss

    def craft(self: Adversarial, model: nn.Module, batch: Batch, ctx: Any) -> Any:
        labels.append(batch.y)
        return attack(self, model, batch, ctx)

    def noted(self: Adversarial, model: nn.Module, batch: Batch, crafted: Any, ctx: Any) -> Any:
        smoothings.append(batch.label_smoothing)
        found = loss(self, model, batch, crafted, ctx)
        logits = model(crafted.x)
        assert torch.equal(found.total, F.cross_entropy(logits, batch.y, label_smoothing=0.2))
        assert not torch.equal(found.total, F.cross_entropy(logits, batch.y))
        return found

    monkeypatch.setattr(Adversarial, "craft", craft)
    monkeypatch.setattr(Adversarial, "loss", noted)
    hard = walk(learner(LINF), 1, 0)
    soft = learner(replace(LINF, label_smoothing=0.2))
    soft.step(batch(1), 1)
    assert smoothings == [0.2]
    assert torch.equal(labels[0], batch(1).y) and labels[0].dtype == torch.int64
    assert torch.equal(labels[0], hard.prepare_batch(batch(1), 1).y)


def test_a_step_draws_nothing_from_the_global_generator():
    who = learner(LINF, Forgetful())
    state = torch.random.get_rng_state()
    walk(who, 1, 2)
    assert torch.equal(torch.random.get_rng_state(), state)


class Poisoned(Tiny):
    """Fine at first; its answers in training are not numbers from the third pass on."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.passes = what, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        logits = super().forward(x if bool(x.sum() < 1e9) else x / 2)
        if self.what == "loss" and self.passes == 3:
            return logits * math.nan
        if self.what == "gradients" and self.passes == 3:
            return logits + (self.linear.bias * 0).abs().sqrt().sum()
        if self.what == "image gradients" and self.passes == 2 and not self.training:
            return logits + (x * 0).sqrt().flatten(1).sum(1, keepdim=True)
        return logits


def poisoned(what: str, task: Task) -> tuple[Learner, Weights]:
    who = walk(learner(task, Poisoned(what)), 1, 2)
    return who, clone({name: tensor for name, tensor in who.params.items() if "bn" not in name})


@pytest.mark.parametrize("task", [NATURAL, LINF], ids=lambda task: task.name)
def test_a_loss_that_is_not_finite_names_learner_epoch_and_step_before_anything_moves(task: Task):
    who, before = poisoned("loss", task)
    with pytest.raises(Diverged, match=f"learner {task.name}, epoch 1, step 3: the loss is nan"):
        who.step(batch(3), 3)
    assert all(torch.equal(who.params[name], tensor) for name, tensor in before.items())


def test_gradients_that_are_not_finite_never_become_weights_of_a_mixture():
    who, _ = poisoned("gradients", replace(NATURAL, average=Constant(value=0.5)))
    with pytest.raises(
        Diverged, match="learner natural, epoch 1, step 3: the weights after it are not finite"
    ):
        who.step(batch(3), 3)
    assert all(tensor.isfinite().all() for tensor in who.averaged_weights().values())


def test_an_attack_on_gradients_that_are_not_finite_names_learner_epoch_and_step():
    who, before = poisoned("image gradients", LINF)
    with pytest.raises(ThreatError, match=r"learner linf, epoch 1, step 3: .*gradients are not finite"):
        who.step(batch(3), 3)
    assert all(torch.equal(who.params[name], tensor) for name, tensor in before.items())
