"""How far the weights of learners are from each other, from their mixture and from the global weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from allrounder.types import NamedTensors, Weights


@final
@dataclass(frozen=True)
class Drift:
    """Distances in the space of weights, as float64 sums in the order of the global weights."""

    drift: float
    """sum_a gamma_a ||theta_a - theta_bar||^2 around the mixture theta_bar = sum_a gamma_a theta_a."""
    distances: Mapping[str, float]
    """||theta_a - theta_g|| of every learner from the global weights."""


def measure_drift(
    learners: Iterable[tuple[str, NamedTensors]], shares: Mapping[str, float], theta_g: NamedTensors
) -> Drift:
    """Measure the drift and the distances of learners; only tensors that a learner and `theta_g` have count.

    The learners are read one at a time, so that they may come from other ranks. The mixture is kept as a
    running mean (West, 1979, Updating mean and variance estimates): differences are squared, never sums of
    squares subtracted, so that learners that are close to each other lose no digits.
    """
    drift, total = 0.0, 0.0
    mean: Weights = {}
    distances: dict[str, float] = {}
    for name, weights in learners:
        # The order of the sums must not depend on that of tensors that another rank sent.
        theta = {key: _as_vector(weights[key]) for key in theta_g if key in weights}
        distances[name] = math.sqrt(_sum_squares(theta[key] - _as_vector(theta_g[key]) for key in theta))
        share = shares[name]
        if share == 0:
            continue
        before, total = total, total + share
        if not mean:
            mean = theta
            continue
        drift += share * before / total * _sum_squares(theta[key] - mean[key] for key in theta)
        for key, vector in theta.items():
            mean[key] += share / total * (vector - mean[key])
    return Drift(drift, distances)


def _as_vector(tensor: Tensor) -> Tensor:
    """Return a copy as float64 on the CPU, in the order of its indices: how it is stored must not decide how
    its sum rounds, and a learner of another rank arrives stored in another order."""
    copy = tensor.detach().cpu().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    return copy.reshape(-1)


def _sum_squares(vectors: Iterable[Tensor]) -> float:
    return sum(float(vector.square().sum()) for vector in vectors)
