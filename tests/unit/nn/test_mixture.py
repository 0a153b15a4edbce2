from __future__ import annotations

from math import comb

import pytest
import torch

from allrounder.errors import InputError
from allrounder.nn.mixture import mix_weights, simplex_grid
from allrounder.nn.state import clone, weights_of
from tests.support.networks import Tiny, same

NAMES = ("linf", "natural", "l2")


def networks() -> dict[str, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    weights = {name: clone(weights_of(Tiny())) for name in NAMES}
    weights["linf"]["bn.bias"][0] = -0.0
    return weights


@pytest.mark.parametrize("name", NAMES)
def test_a_share_of_one_gives_exactly_that_network(name: str):
    weights = networks()
    mixed = mix_weights(weights, {**dict.fromkeys(NAMES, 0.0), name: 1.0})
    assert same(mixed, weights[name])
    assert bool(mixed["bn.bias"][0].signbit()) == bool(weights[name]["bn.bias"][0].signbit())
    mixed["linear.bias"].zero_()
    assert weights[name]["linear.bias"].any(), "the result is a copy"


def test_a_mixture_is_the_weighted_sum():
    weights, shares = networks(), {"linf": 0.5, "natural": 0.3, "l2": 0.2}
    mixed = mix_weights(weights, shares)
    for key, tensor in mixed.items():
        if tensor.is_floating_point():
            expected = sum(share * weights[name][key].double() for name, share in shares.items())
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"linf": 0.5, "natrual": 0.5}, 'natrual.*expected linf, natural, l2; did you mean "natural"'),
        ({"linf": 0.5, "natural": 0.4}, "0.5 \\+ 0.4 is 0.9, expected shares that sum to one"),
        ({"linf": 1.5, "natural": -0.5}, "linf is 1.5, expected a number from 0 to 1"),
        ({"linf": float("nan")}, "linf is nan"),
        ({}, "nothing is 0"),
    ],
)
def test_wrong_shares_are_explained(shares: dict[str, float], message: str):
    with pytest.raises(InputError, match=message):
        mix_weights(networks(), shares)


@pytest.mark.parametrize(("names", "points"), [(NAMES, 5), (NAMES[:2], 5), (NAMES, 2), ("abcd", 4)])
def test_the_grid_covers_the_simplex_once(names: tuple[str, ...], points: int):
    grid = simplex_grid(names, points)
    assert len(grid) == comb(points + len(names) - 2, len(names) - 1)
    assert len({tuple(shares.values()) for shares in grid}) == len(grid)
    assert all(abs(sum(shares.values()) - 1) < 1e-12 and list(shares) == list(names) for shares in grid)
    assert all({**dict.fromkeys(names, 0.0), name: 1.0} in grid for name in names)


def test_a_finer_grid_contains_a_coarse_one():
    fine = simplex_grid(NAMES, 7)
    assert all(shares in fine for shares in simplex_grid(NAMES, 4))
    with pytest.raises(InputError, match="got 1, expected at least 2"):
        simplex_grid(NAMES, 1)
