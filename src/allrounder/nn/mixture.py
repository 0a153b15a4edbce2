"""Mixtures of several networks' weights after training: sums of share x weights, and grids of shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from allrounder.config.fields import did_you_mean
from allrounder.errors import InputError
from allrounder.nn.mixing import chosen
from allrounder.nn.state import average_weights, clone
from allrounder.types import NamedTensors, Weights

TOLERANCE = 1e-6
"""How far the sum of shares may be from one."""


def mix_weights(weights: Mapping[str, NamedTensors], shares: Mapping[str, float]) -> Weights:
    """Mix the weights of networks of one architecture: the sum of share x weights.

    Networks without a share are left out. A share of one gives exactly the weights of that network. Integer
    buffers are those of the last network with a share. Batch-norm statistics are averaged like weights; a
    mixture needs its own, see `allrounder.nn.batchnorm.recalibrate_`.
    """
    check_shares(shares, tuple(weights))
    used = [name for name in weights if shares.get(name, 0.0) > 0]
    if len(used) == 1:
        return clone(weights[used[0]])
    return average_weights([weights[name] for name in used], [shares[name] for name in used])


def check_shares(shares: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise InputError unless the shares are numbers in [0, 1] of known networks that sum to one."""
    for name, share in shares.items():
        if name not in names:
            known = f"expected {', '.join(names)}{did_you_mean(name, names)}"
            raise InputError(f"shares: no network is called {name!r}, {known}")
        if not 0 <= share <= 1:  # also for NaN
            raise InputError(f"shares: {name} is {share:g}, expected a number from 0 to 1")
    total = math.fsum(shares.values())
    if abs(total - 1) > TOLERANCE:
        given = " + ".join(f"{share:g}" for share in shares.values()) or "nothing"
        raise InputError(f"shares: {given} is {total:g}, expected shares that sum to one")


def simplex_grid(names: Sequence[str], points: int) -> list[dict[str, float]]:
    """Return all shares that are multiples of 1 / (points - 1) and sum to one, those of the first name
    falling; so there are `points` mixtures of every two networks, and each network alone is one of them."""
    if points < 2:
        raise InputError(f"points: got {points}, expected at least 2 on every edge: its two ends")
    grid = chosen.simplex_grid(len(names), points - 1)
    return [dict(zip(names, shares, strict=True)) for shares in reversed(grid)]
