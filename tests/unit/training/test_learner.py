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


def walk(trained: Learner, first: int, last: int) -> Learner:
    for t in range(first, last + 1):
        trained.step(batch(t), t)
    return trained


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("task", [NATURAL, LINF], ids=lambda task: task.name)
def test_a_restored_learner_gives_identical_weights(task: Task, optimizer: Optimizer):
    task = replace(task, optimizer=optimizer, average=Constant(value=0.7))
    straight = walk(learner(task, Forgetful()), 1, 3)
    again = learner(task, Forgetful())
    again.load_state_dict(
        {name: tensor.contiguous().clone() for name, tensor in straight.state_dict().items()}
    )
    assert same(again.state_dict(), straight.state_dict())
    assert same(walk(again, 4, 6).state_dict(), walk(straight, 4, 6).state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_restored_state_keeps_its_memory_layout(optimizer: Optimizer):
    def wide() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))

    task = replace(NATURAL, optimizer=optimizer, average=Constant(value=0.7))
    straight = walk(learner(task, wide()), 1, 2)
    again = learner(task, wide())
    again.load_state_dict(
        {name: tensor.contiguous().clone() for name, tensor in straight.state_dict().items()}
    )
    assert layouts(again) == layouts(straight)


def layouts(trained: Learner) -> dict[str, list[int]]:
    """Strides, but of dimensions of one, where they mean nothing."""
    return {
        name: [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
        for name, tensor in trained.state_dict().items()
    }


def test_restoring_an_initial_state_resets_momentum():
    fresh, old = learner(), walk(learner(), 1, 2)
    old.load_state_dict(clone(fresh.state_dict()))
    assert same(old.state_dict(), fresh.state_dict())


def test_a_step_is_plain_descent_on_the_prepared_batch():
    trained = learner(replace(NATURAL, optimizer=Sgd(momentum=0.0)))
    with Rng(1).seed_global():
        model = Tiny()
    seen = trained.prepare_batch(batch(1), 1)
    model.train()
    F.cross_entropy(model(seen.x), seen.y).backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= 0.1 * p.grad
    loss = trained.step(batch(1), 1)
    assert loss.total.isfinite()
    for name, tensor in model.state_dict().items():
        assert torch.allclose(trained.params[name], tensor, rtol=0, atol=1e-6), name


def test_the_weight_average_follows_its_recursion_and_enters_the_mix():
    trained = learner(replace(NATURAL, average=Constant(value=0.7)))
    expected = clone(trained.params)
    for t in (1, 2, 3):
        trained.step(batch(t), t)
        for name, tensor in trained.params.items():
            expected[name] = (
                0.7 * expected[name] + (1 - 0.7) * tensor if tensor.is_floating_point() else tensor
            )
    given = trained.averaged_weights()
    for name, tensor in expected.items():
        assert torch.allclose(given[name], tensor, rtol=0, atol=1e-6), name
    assert not same(given, trained.params)


def test_without_an_average_the_live_weights_enter_the_mix():
    trained = walk(learner(), 1, 1)
    assert trained.averaged_weights() is trained.params


def moments(trained: Learner) -> list[Tensor]:
    return [state["momentum_buffer"] for state in trained.optimizer.state.values()]


@pytest.mark.parametrize("momentum", ["keep", "reset"])
@pytest.mark.parametrize("averages", ["keep", "reset"])
def test_an_exchange_replaces_weights_and_keeps_or_resets_momentum_and_average(momentum: Any, averages: Any):
    trained = walk(learner(replace(NATURAL, average=Constant(value=0.7))), 1, 2)
    assert trained.average is not None
    before, average = [tensor.clone() for tensor in moments(trained)], clone(trained.average)
    new = {name: tensor + 1 for name, tensor in zeros_like(trained.params).items()}
    trained.load_global_weights(new, momentum, averages)
    assert same(trained.params, new)
    assert same(trained.average, new if averages == "reset" else average)
    after = moments(trained)
    assert after == [] if momentum == "reset" else all(map(torch.equal, before, after))
    trained.params["conv.weight"].zero_()
    assert new["conv.weight"].all(), "what was received is not shared"


def test_reset_momentum_equals_that_of_a_new_optimizer():
    trained = walk(learner(), 1, 2)
    trained.load_global_weights(clone(trained.params), momentum="reset")
    fresh = learner()
    fresh.load_global_weights(clone(trained.params))
    assert same(walk(trained, 3, 4).state_dict(), walk(fresh, 3, 4).state_dict())


def test_the_learning_rate_is_that_of_the_step():
    class Halves:
        def __call__(self, t: int, clock: Clock) -> float:
            return 0.5**t

    trained = learner()
    object.__setattr__(trained, "task", type("Stub", (), {"lr": Halves()})())
    assert trained.lr(1) == 0.5**4, "the pace is by epoch: read at its end"
    assert trained.lr(5) == 0.5**8
    real = learner()
    real.step(batch(1), 1)
    assert [group["lr"] for group in real.optimizer.param_groups] == [real.lr(1)]


def test_tasks_of_one_stream_see_the_same_images_and_others_do_not():
    one, twin, other = (
        learner(replace(task, augment_stream=stream))
        for task, stream in ((NATURAL, "shared"), (LINF, "shared"), (LINF, "other"))
    )
    x = [trained.prepare_batch(batch(3), 3).x for trained in (one, twin, other)]
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])
    assert not torch.equal(one.prepare_batch(batch(3), 3).x, one.prepare_batch(batch(3), 4).x)


def test_label_smoothing_affects_the_loss_but_not_the_attack(monkeypatch: pytest.MonkeyPatch):
    labels: list[Tensor] = []
    smoothings: list[float] = []
    attack, loss = Adversarial.craft, Adversarial.loss

    def craft(self: Adversarial, model: nn.Module, batch: Batch, ctx: Any) -> Any:
        labels.append(batch.y)
        return attack(self, model, batch, ctx)

    def noted(self: Adversarial, model: nn.Module, batch: Batch, crafted: Any, ctx: Any) -> Any:
        smoothings.append(batch.label_smoothing)
        result = loss(self, model, batch, crafted, ctx)
        logits = model(crafted.x)
        assert torch.equal(result.total, F.cross_entropy(logits, batch.y, label_smoothing=0.2))
        assert not torch.equal(result.total, F.cross_entropy(logits, batch.y))
        return result

    monkeypatch.setattr(Adversarial, "craft", craft)
    monkeypatch.setattr(Adversarial, "loss", noted)
    hard = walk(learner(LINF), 1, 0)
    soft = learner(replace(LINF, label_smoothing=0.2))
    soft.step(batch(1), 1)
    assert smoothings == [0.2]
    assert torch.equal(labels[0], batch(1).y) and labels[0].dtype == torch.int64
    assert torch.equal(labels[0], hard.prepare_batch(batch(1), 1).y)


def test_a_step_draws_nothing_from_the_global_generator():
    trained = learner(LINF, Forgetful())
    state = torch.random.get_rng_state()
    walk(trained, 1, 2)
    assert torch.equal(torch.random.get_rng_state(), state)


class Poisoned(Tiny):
    """Fine at first; its answers in training are not numbers from the third pass on."""

    def __init__(self, failure: str) -> None:
        super().__init__()
        self.failure, self.passes = failure, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        logits = super().forward(x if bool(x.sum() < 1e9) else x / 2)
        if self.failure == "loss" and self.passes == 3:
            return logits * math.nan
        if self.failure == "gradients" and self.passes == 3:
            return logits + (self.linear.bias * 0).abs().sqrt().sum()
        if self.failure == "image gradients" and self.passes == 2 and not self.training:
            return logits + (x * 0).sqrt().flatten(1).sum(1, keepdim=True)
        return logits


def poisoned(failure: str, task: Task) -> tuple[Learner, Weights]:
    trained = walk(learner(task, Poisoned(failure)), 1, 2)
    return trained, clone({name: tensor for name, tensor in trained.params.items() if "bn" not in name})


@pytest.mark.parametrize("task", [NATURAL, LINF], ids=lambda task: task.name)
def test_a_nonfinite_loss_names_learner_epoch_and_step_before_weights_change(task: Task):
    trained, before = poisoned("loss", task)
    with pytest.raises(Diverged, match=f"learner {task.name}, epoch 1, step 3: the loss is nan"):
        trained.step(batch(3), 3)
    assert all(torch.equal(trained.params[name], tensor) for name, tensor in before.items())


def test_nonfinite_gradients_raise_before_they_reach_the_mix():
    trained, _ = poisoned("gradients", replace(NATURAL, average=Constant(value=0.5)))
    with pytest.raises(
        Diverged, match="learner natural, epoch 1, step 3: the weights after it are not finite"
    ):
        trained.step(batch(3), 3)
    assert all(tensor.isfinite().all() for tensor in trained.averaged_weights().values())


def test_nonfinite_gradients_in_an_attack_name_learner_epoch_and_step():
    trained, before = poisoned("image gradients", LINF)
    with pytest.raises(ThreatError, match=r"learner linf, epoch 1, step 3: .*gradients are not finite"):
        trained.step(batch(3), 3)
    assert all(torch.equal(trained.params[name], tensor) for name, tensor in before.items())
