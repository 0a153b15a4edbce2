"""Steps of the outer optimiser, against torch's."""

from __future__ import annotations

import pytest
import torch

from allrounder.nn.mixing import LearnerView, Outer
from allrounder.types import Weights

SHARES = {"a": 0.3, "b": 0.7}


def draw(seed: int) -> torch.Tensor:
    return torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixture(rule: Outer, t: int) -> Weights:
    states = {name: rule.init({"w": draw(0), "var": draw(1)}, is_first=name == "a") for name in SHARES}
    for number, (name, share) in enumerate(SHARES.items()):
        view = LearnerView(name, {"w": draw(10 * t + number), "var": draw(500 + 10 * t + number)})
        rule.update_(states[name], view, share=share, decay=0.0)
    return rule.combine(states.values())


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.5), (1.5, 0.0)])
def test_exchanges_are_steps_of_sgd_with_nesterov_momentum(lr: float, momentum: float):
    rule = Outer(lr=lr, momentum=momentum)
    memory = rule.memory({"w": draw(0)})
    parameter = torch.nn.Parameter(draw(0))
    sgd = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for t in range(1, 6):
        mixed = mixture(rule, t)
        theta, memory = rule.step(mixed, memory)
        parameter.grad = parameter.detach() - 0.3 * draw(10 * t) - 0.7 * draw(10 * t + 1)
        sgd.step()
        assert torch.allclose(theta["w"], parameter.detach(), rtol=1e-12)
        assert torch.equal(theta["var"], mixed["var"]), "a buffer is that of the mixture"


def test_rate_one_without_momentum_gives_the_bits_of_the_mixture():
    rule = Outer(lr=1.0, momentum=0.0)
    memory = rule.memory({"w": draw(0)})
    for t in range(1, 4):
        theta, memory = rule.step(mixture(rule, t), memory)
        assert torch.equal(theta["w"], 0.3 * draw(10 * t) + 0.7 * draw(10 * t + 1))
        assert torch.equal(theta["w"], memory["last.w"])
