"""Steps of an objective with a small network, or with answers that are told beforehand."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from allrounder.attacks.base import Crafted
from allrounder.config.time import Clock
from allrounder.objectives import Objective
from allrounder.rng import Draws
from allrounder.types import Batch, Context, Loss, Passes
from tests.support.networks import Tiny, blobs, same

DATA = blobs()
Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
NATURAL, ROBUST = Z, Z.flip(0) + 0.5
"""Logits of four natural images, and of what was crafted from them."""


class Told(nn.Module):
    """Answers with the given logits, one after the other, and remembers what it was shown."""

    def __init__(self, *answers: Tensor) -> None:
        super().__init__()
        self.answers, self.seen = list(answers), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.answers.pop(0)


def network() -> nn.Module:
    with Draws(0).ambient():
        return Tiny().train()


def batch(n: int = 12, smoothing: float = 0.0) -> Batch:
    index = torch.arange(n)
    return Batch(DATA.train.fetch(index), DATA.train.labels[index], index, smoothing)


def context(t: int = 1) -> Context:
    return Context(t, Clock(epochs=10, steps=4), Draws(3).at("task", t), {})


def step(objective: Objective, given: Batch | None = None) -> tuple[Loss, dict[str, Tensor]]:
    """One step of a fresh network: its loss, and its gradients and buffers after it."""
    model, given = network(), given or batch()
    loss = objective.loss(model, given, objective.craft(model, given, context()), context())
    loss.total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss, {**gradients, **{name: buffer.clone() for name, buffer in model.named_buffers()}}


def told(objective: Objective, *answers: Tensor, given: Batch | None = None) -> tuple[Loss, Told]:
    """The loss of four crafted images with given logits."""
    model, given = Told(*answers), given or replace(batch(4), x=batch(4).x.double())
    crafted = Crafted(x=(given.x + 0.05).clamp(0, 1), passes=Passes(), steps=torch.tensor([0, 1, 2, 3]))
    return objective.loss(model, given, crafted, context()), model


def equal(one: Objective, other: Objective) -> None:
    (first, left), (second, right) = (step(objective) for objective in (one, other))
    assert torch.equal(first.total, second.total)
    assert same(left, right)
    assert first.parts["accuracy"] == second.parts["accuracy"]
    assert one.passes() == other.passes()
