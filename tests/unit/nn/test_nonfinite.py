"""A watch that cannot look without waiting remembers the first bad step, and nothing moves after it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from allrounder.errors import Diverged
from allrounder.nn.nonfinite import NonFiniteGuard
from allrounder.nn.state import clone
from allrounder.training.checkpoint import EpochMetrics, means
from allrounder.types import Loss
from tests.support.networks import same
from tests.unit.training.test_learner import NATURAL, Learner, batch, learner, walk

CPU = torch.device("cpu")
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]


def waiting() -> tuple[nn.Parameter, torch.optim.Optimizer, NonFiniteGuard]:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    return weight, optimizer, waiting_on(optimizer)


def waiting_on(optimizer: torch.optim.Optimizer) -> NonFiniteGuard:
    return NonFiniteGuard(optimizer, CPU, deferred=True)


def step(
    weight: nn.Parameter, optimizer: torch.optim.Optimizer, watch: NonFiniteGuard, t: int, g: float
) -> None:
    watch.t = t
    weight.grad = torch.tensor([1.0, g, 1.0])
    optimizer.step()
    watch.check_weights([weight.detach(), torch.tensor(t)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_no_step_is_taken_from_the_first_bad_gradient_on(kind: type[torch.optim.Optimizer], bad: float):
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, fused=True)  # pyright: ignore[reportCallIssue]
    watch = NonFiniteGuard(optimizer, CPU, deferred=True)
    step(weight, optimizer, watch, 1, 1.0)
    assert watch.first_bad_step() is None and not torch.equal(weight, torch.ones(3))
    before = weight.detach().clone()
    for t, g in ((2, bad), (3, 1.0), (4, bad)):
        step(weight, optimizer, watch, t, g)
    assert torch.equal(weight, before)
    assert watch.first_bad_step() == 2


def test_weights_that_overflow_in_a_finite_step_are_detected():
    weight, optimizer, watch = waiting()
    step(weight, optimizer, watch, 1, 1.0)
    watch.t = 2
    watch.check_weights([torch.tensor([1.0, math.inf]), torch.empty(0)])
    step(weight, optimizer, watch, 3, 1.0)
    assert watch.first_bad_step() == 2


def test_checks_that_are_not_deferred_raise_at_once():
    _, optimizer, _ = waiting()
    watch = NonFiniteGuard(optimizer, CPU, deferred=False)
    watch.check_weights([torch.ones(2)])
    with pytest.raises(Diverged, match="weights after it are not finite; try a smaller learning rate"):
        watch.check_weights([torch.tensor([1.0, math.nan])])
    assert watch.first_bad_step() is None


def patient() -> Learner:
    """A learner as on a device: a fused optimiser and a watch that waits."""
    trained = learner(NATURAL)
    trained.optimizer = torch.optim.SGD(trained.model.parameters(), lr=0.0, momentum=0.9, fused=True)
    trained.nonfinite_guard = NonFiniteGuard(trained.optimizer, trained.device, deferred=True)
    return trained


def test_a_learner_with_deferred_checks_raises_when_it_logs_or_saves():
    trained = walk(patient(), 1, 2)
    trained.raise_if_nonfinite()
    before = clone({name: tensor for name, tensor in trained.params.items() if "bn" not in name})
    handle = next(trained.model.parameters()).register_hook(lambda g: g * math.nan)
    trained.step(batch(3), 3)
    handle.remove()
    walk(trained, 4, 5)
    message = "learner natural, epoch 1, step 3: gradients or weights are not finite"
    with pytest.raises(Diverged, match=message):
        trained.raise_if_nonfinite()
    with pytest.raises(Diverged, match=message):
        trained.state_dict()
    assert same({name: trained.params[name] for name in before}, before)


def test_deferred_metrics_equal_immediate_ones():
    at_once, later = EpochMetrics(["a"]), EpochMetrics(["a"], lazy=True)
    for number in range(1, 8):
        for meter in (at_once, later):
            meter.add("a", Loss(torch.tensor(1 / number), {"accuracy": torch.tensor(0.3)}), number)
    assert len(later.pending) == 7 and not at_once.pending
    assert later.sums == at_once.sums and not later.pending
    assert means(later.pop_sums("a")) == means(at_once.pop_sums("a"))


def test_deferred_metrics_are_read_after_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allrounder.training.checkpoint.MAX_PENDING", 3)
    meter = EpochMetrics(["a"], lazy=True)
    for unread in (1, 2, 0):
        meter.add("a", Loss(torch.tensor(1.0)), 1)
        assert len(meter.pending) == unread
