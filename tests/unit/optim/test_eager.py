"""Optimisers without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from allrounder.optim.eager import eager_class
from allrounder.optim.optimizers import Adam, AdamW, Optimizer, Sgd

PROGRAM = """
import sys, torch
from allrounder.optim.optimizers import Adam, AdamW, Sgd
for settings in (Sgd(), Adam(), AdamW()):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = settings.build([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize("settings", [Sgd(weight_decay=0.1), Sgd(nesterov=True), Adam(), AdamW()])
def test_the_steps_are_bit_for_bit_those_of_torch(settings: Optimizer):
    start = torch.linspace(-1, 1, 7)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizer = settings.build([ours])
    (kind,) = type(optimizer).__bases__
    implied = ("params", "decoupled_weight_decay")
    groups = {key: value for key, value in optimizer.param_groups[0].items() if key not in implied}
    reference = kind([theirs], **groups)
    for number in range(3):
        for parameter, side in ((ours, optimizer), (theirs, reference)):
            side.param_groups[0]["lr"] = 0.1
            side.zero_grad()
            (parameter**2).sum().mul(number + 1).backward()
            side.step()
    assert torch.equal(ours, theirs) and not torch.equal(ours, start)
    assert str(optimizer.state_dict()) == str(reference.state_dict())


def test_a_step_restores_whether_gradients_are_on():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = eager_class(torch.optim.SGD)([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert torch.is_grad_enabled() and parameter.requires_grad


def test_a_step_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
