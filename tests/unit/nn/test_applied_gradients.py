"""The gradients that an optimiser applied, after its step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from allrounder.nn.applied_gradients import AppliedGradients
from tests.support.networks import Tiny


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 1, 8, 8)).square().sum()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_they_are_those_of_the_step_and_survive_the_next_backward_pass(kind: type[torch.optim.Optimizer]):
    model = Tiny()
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1)  # pyright: ignore[reportCallIssue]
    applied = AppliedGradients(model, optimizer)
    loss_of(model).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2)  # an update may edit gradients before the step
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss_of(model).backward()
    gradients = applied.pop()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(gradients[name], g) for name, g in expected.items())
    assert applied.pop() == {}


def test_a_step_that_writes_to_gradients_does_not_change_them():
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    applied = AppliedGradients(model, optimizer)
    loss_of(model).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    assert all(torch.equal(g, expected[name]) for name, g in applied.pop().items())


def test_a_parameter_without_gradient_is_missing():
    model = Tiny()
    model.conv.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied = AppliedGradients(model, optimizer)
    assert applied.pop() == {}, "no step yet"
    loss_of(model).backward()
    optimizer.step()
    assert set(applied.pop()) == {"bn.weight", "bn.bias", "linear.weight", "linear.bias"}
