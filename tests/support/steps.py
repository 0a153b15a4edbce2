"""Steps of an objective with a small network, or with fixed logits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from allrounder.attacks.base import AttackResult
from allrounder.config.time import Clock
from allrounder.objectives import Objective
from allrounder.rng import Rng
from allrounder.types import Batch, Context, Loss, Passes
from tests.support.networks import Tiny, blobs, same

DATA = blobs()
Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
NATURAL, ROBUST = Z, Z.flip(0) + 0.5
"""Logits of four natural images, and of the images crafted from them."""


class FixedLogits(nn.Module):
    """Returns the given logits, one after the other, and records its inputs."""

    def __init__(self, *answers: Tensor) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen = list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.answers.pop(0)


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().train()


def batch(n: int = 12, label_smoothing: float = 0.0) -> Batch:
    index = torch.arange(n)
    return Batch(DATA.train.fetch(index), DATA.train.labels[index], index, label_smoothing)


def context(t: int = 1) -> Context:
    return Context(t, Clock(epochs=10, steps_per_epoch=4), Rng(3).fold_in("task", t), {})


def craft(objective: Objective, model: nn.Module, given: Batch, ctx: Context) -> AttackResult:
    """Craft images with an objective that always does."""
    crafted = objective.craft(model, given, ctx)
    assert crafted is not None
    return crafted


def step(objective: Objective, given: Batch | None = None) -> tuple[Loss, dict[str, Tensor]]:
    """One step of a fresh network: its loss, and its gradients and buffers after it."""
    model = network()
    given = given or batch()
    loss = objective.loss(model, given, objective.craft(model, given, context()), context())
    loss.total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss, {**gradients, **{name: buffer.clone() for name, buffer in model.named_buffers()}}


def loss_with_logits(
    objective: Objective, *answers: Tensor, given: Batch | None = None
) -> tuple[Loss, FixedLogits]:
    """The loss of four crafted images with given logits."""
    model = FixedLogits(*answers)
    given = given or replace(batch(4), x=batch(4).x.double())
    crafted = AttackResult(x=(given.x + 0.05).clamp(0, 1), passes=Passes(), steps=torch.tensor([0, 1, 2, 3]))
    return objective.loss(model, given, crafted, context()), model


def assert_equal_steps(one: Objective, other: Objective) -> None:
    """Assert that two objectives take the same step, bit for bit."""
    (first, left), (second, right) = (step(objective) for objective in (one, other))
    assert torch.equal(first.total, second.total)
    assert same(left, right)
    assert first.parts["accuracy"] == second.parts["accuracy"]
    assert one.passes() == other.passes()
