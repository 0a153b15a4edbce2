"""The mixture with chosen shares, against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from allrounder.nn.mixing import Chosen, LearnerView
from allrounder.nn.mixing.chosen import SHARES, shares_of, simplex_grid, with_shares
from allrounder.types import Weights

NAMES = ("a", "b", "c")


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    draws = {name: torch.randn(8, generator=generator) for name in ("conv.weight", "conv.bias", "fc.weight")}
    return {**draws, "conv.count": torch.tensor(seed)}


def states_of(rule: Chosen) -> list[Weights]:
    states = [rule.init(weights(0), is_first=name == "a") for name in NAMES]
    for number, (name, state) in enumerate(zip(NAMES, states, strict=True)):
        rule.update_(state, LearnerView(name, weights(1 + number)), share=0.1, decay=0.5)
    return states


def test_shares_are_equal_before_the_first_choice():
    rule = Chosen()
    states = states_of(rule)
    mean = sum(weights(seed)["fc.weight"] for seed in (1, 2, 3)) / 3
    assert torch.allclose(rule.combine(states)["fc.weight"], torch.as_tensor(mean))
    assert rule.share_in_force(states[0]) is None
    assert shares_of(dict(zip(NAMES, states, strict=True)), 0) == pytest.approx(dict.fromkeys(NAMES, 1 / 3))


def test_every_layer_has_its_own_shares():
    rule = Chosen(groups="layers")
    states = with_shares(with_shares(states_of(rule), 0, (0.2, 0.8, 0.0)), 1, (0.0, 0.0, 1.0))
    theta = rule.combine(states)
    assert list(rule.group_names(weights(0))) == ["conv", "fc"]
    for name in ("conv.weight", "conv.bias"):
        assert torch.allclose(theta[name], 0.2 * weights(1)[name] + 0.8 * weights(2)[name])
    assert torch.equal(theta["fc.weight"], weights(3)["fc.weight"]), "a single learner keeps its bits"
    assert theta["conv.count"] == 1
    assert [rule.share_in_force(state) for state in states] == pytest.approx([0.1, 0.4, 0.5])


def test_updates_keep_the_shares():
    rule = Chosen()
    state = with_shares(states_of(rule), 0, (0.25, 0.5, 0.25))[1]
    rule.update_(state, LearnerView("b", weights(9)), share=0.1, decay=0.5)
    assert state[SHARES].tolist() == [0.5] and torch.equal(state["theta.conv.bias"], weights(9)["conv.bias"])


@pytest.mark.parametrize(("count", "parts"), [(1, 5), (2, 5), (3, 4), (4, 3)])
def test_the_grid_has_every_multiple_once(count: int, parts: int):
    points = simplex_grid(count, parts)
    assert len(points) == len(set(points)) == math.comb(parts + count - 1, count - 1)
    for point in points:
        assert len(point) == count and sum(point) == pytest.approx(1)
        assert all(share >= 0 and share * parts == pytest.approx(round(share * parts)) for share in point)
