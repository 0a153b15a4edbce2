"""The average that squared gradients weigh, against its definition."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from allrounder.nn.mixing import Ema, Fisher, LearnerView, MixRule
from allrounder.types import Weights

NAMES = ("a", "b")
SHARES = {"a": 0.3, "b": 0.7}


def draw(seed: int, size: int = 32) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(seed: int) -> Weights:
    return {"w": draw(seed), "mean": draw(1000 + seed), "count": torch.tensor(seed)}


def mix(rule: MixRule, gradients: Mapping[tuple[int, str], Tensor], steps: int, decay: float) -> Weights:
    """The global weights after steps with given gradients of `w`; `mean` is a buffer."""
    states = {name: rule.init(weights(0), is_first=name == "a") for name in NAMES}
    for t in range(1, steps + 1):
        for number, name in enumerate(NAMES):
            view = LearnerView(name, weights(10 * t + number))
            if (t, name) in gradients:
                view.gradients = {"w": gradients[t, name]}
            rule.update_(states[name], view, share=SHARES[name], decay=decay)
    return rule.combine(states.values())


@pytest.mark.parametrize("size", [0.0, 0.1, 30.0])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_equal_and_constant_squares_give_the_moving_average(size: float, decay: float):
    signs = {(t, name): size * draw(t + len(name)).sign() for t in range(1, 8) for name in NAMES}
    fisher, ema = mix(Fisher(), signs, 7, decay), mix(Ema(), {}, 7, decay)
    for name in ("w", "mean"):
        assert torch.allclose(fisher[name], ema[name], rtol=1e-6, atol=1e-7)
    assert fisher["count"] == ema["count"] == 70, "the counter of the first learner"


def test_it_follows_its_definition():
    rule = Fisher(square_decay=0.5, epsilon=1e-3)
    grads = {(t, name): draw(50 * t + number) for t in range(1, 6) for number, name in enumerate(NAMES)}
    theta = mix(rule, grads, 5, 0.8)
    square = dict.fromkeys(NAMES, torch.zeros(32, dtype=torch.float64))
    first = grads[1, "a"].square() + 1e-3
    weighted, total = {"a": first * draw(0), "b": 0 * first}, {"a": first, "b": 0 * first}
    for t in range(1, 6):
        for number, name in enumerate(NAMES):
            rate = max(0.5, 1 / t)
            square[name] = (1 - rate) * square[name] + rate * grads[t, name].square()
            f = square[name] + 1e-3
            weighted[name] = 0.8 * weighted[name] + 0.2 * SHARES[name] * f * draw(10 * t + number)
            total[name] = 0.8 * total[name] + 0.2 * SHARES[name] * f
    expected = (weighted["a"] + weighted["b"]) / (total["a"] + total["b"])
    assert torch.allclose(theta["w"], expected, rtol=1e-6)


def test_a_parameter_follows_the_learner_whose_loss_depends_on_it():
    grads = {(1, "a"): torch.zeros(32, dtype=torch.float64), (1, "b"): torch.zeros(32, dtype=torch.float64)}
    grads[1, "a"][:16], grads[1, "b"][16:] = 10.0, 10.0
    theta = mix(Fisher(), grads, 1, 0.0)
    assert torch.allclose(theta["w"][:16], draw(10)[:16]) and torch.allclose(theta["w"][16:], draw(11)[16:])
    assert torch.allclose(theta["mean"], 0.3 * draw(1010) + 0.7 * draw(1011), rtol=1e-6)


def test_every_parameter_lies_between_those_of_the_learners():
    grads = {(t, name): 5 * draw(70 * t + len(name)) for t in range(1, 10) for name in NAMES}
    seen = torch.stack(
        [draw(0), *(draw(10 * t + number) for t in range(1, 10) for number in range(len(NAMES)))]
    )
    w = mix(Fisher(), grads, 9, 0.7)["w"]
    assert bool((w >= seen.min(0).values - 1e-9).all()) and bool((w <= seen.max(0).values + 1e-9).all())


def test_steps_without_gradients_keep_the_squares():
    rule = Fisher()
    state = rule.init(weights(0), is_first=True)
    view = LearnerView("a", weights(1))
    view.gradients = {"w": draw(3)}
    rule.update_(state, view, share=1.0, decay=0.5)
    view.gradients = {}
    rule.update_(state, view, share=1.0, decay=0.5)
    assert torch.equal(state["square.w"], draw(3).square())
