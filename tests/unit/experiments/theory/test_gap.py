"""The mixing gap on networks for which everything has a closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from allrounder.experiments.theory.gap import measure_gap
from allrounder.nn.drift import measure_drift
from allrounder.nn.state import clone, weights_of
from allrounder.types import Weights

SHARES = {"a": 0.25, "b": 0.75}
Y = torch.tensor([0, 1])


class Power(nn.Module):
    """The logits (w^power x, 0) of images of one pixel."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        z = self.w**self.power * x.flatten(1)
        return torch.cat([z, torch.zeros_like(z)], 1)


def pixels(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1)


def at(w: float) -> Weights:
    return {"w": torch.tensor(w, dtype=torch.float64)}


def test_a_linear_network_has_no_gap_and_no_curvature():
    gap = measure_gap(Power(1), {"a": at(3.0), "b": at(-1.0)}, SHARES, at(0.0), pixels(0.5, 1.0), Y)
    assert gap.largest < 1e-12 and gap.curvature < 1e-10 and gap.constant < 1e-8
    assert gap.drift == pytest.approx(0.25 * 0.75 * 16)
    assert gap.slope == pytest.approx(1.0), "the largest pixel"
    assert gap.parameter_drift == gap.drift, "it has no buffers"


def test_batch_norm_statistics_count_in_the_drift_of_all_weights_only():
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 2)).double()
    a, b = clone(weights_of(network)), clone(weights_of(network))
    b["0.running_mean"] += 2
    gap = measure_gap(network, {"a": a, "b": b}, SHARES, a, pixels(0.5, 1.0), Y)
    assert gap.parameter_drift == 0 and gap.drift == pytest.approx(0.25 * 0.75 * 4)


def test_a_quadratic_network_attains_half_the_bound():
    gap = measure_gap(Power(2), {"a": at(3.0), "b": at(-1.0)}, SHARES, at(0.0), pixels(0.5, 1.0), Y)
    # sum gamma w_a^2 - (sum gamma w_a)^2 is the variance of the weights, 3; times the pixel.
    assert gap.largest == pytest.approx(3.0) and gap.mean == pytest.approx(2.25)
    assert gap.drift == pytest.approx(3.0)
    assert gap.curvature == pytest.approx(2.0), "d^2/dw^2 of w^2 x, at the largest pixel"
    assert gap.bound == pytest.approx(2 * gap.largest), (
        "M drift; the expansion at the mixture gives M/2 drift"
    )
    assert gap.constant == pytest.approx(2 * math.sqrt(2) * 2)
    assert gap.global_largest == pytest.approx(0.25 * 9 + 0.75), "the global weights here are zero"
    assert gap.corrected_constant == pytest.approx(gap.constant + gap.slope**2 / 4)


def test_the_spread_of_predictions_is_at_most_slope_squared_times_drift():
    gap = measure_gap(Power(2), {"a": at(3.0), "b": at(-1.0)}, SHARES, at(0.0), pixels(0.5, 1.0), Y)
    assert gap.spread == pytest.approx(0.25 * 6**2 + 0.75 * 2**2)
    assert gap.spread <= gap.slope**2 * gap.drift
    assert gap.loss_slope <= math.sqrt(2)


def test_equal_learners_have_no_gap():
    gap = measure_gap(Power(2), {"a": at(2.0), "b": at(2.0)}, SHARES, at(2.0), pixels(0.5, 1.0), Y)
    assert gap.largest == gap.curvature == gap.drift == gap.global_largest == 0


def test_a_learner_with_share_zero_is_no_part_of_the_mixture():
    learners, shares = {"a": at(3.0), "b": at(-1.0)}, {"a": 0.0, "b": 1.0}
    gap = measure_gap(Power(2), learners, shares, at(0.0), pixels(0.5, 1.0), Y)
    assert gap.largest == 0 and gap.drift == 0


def test_the_network_is_not_changed():
    network = Power(2).train()
    measure_gap(network, {"a": at(3.0), "b": at(-1.0)}, SHARES, at(0.0), pixels(0.5, 1.0), Y)
    assert float(network.w.detach()) == 0 and network.training


@pytest.mark.parametrize("steps", [1, 5, 30])
def test_the_drift_of_gradient_descent_on_quadratics_has_a_closed_form(steps: int):
    # From one start, theta_a - theta_b = (1 - (1 - rate)^steps) (c_a - c_b) on f_a = 1/2 ||theta - c_a||^2.
    rate, centres = 0.1, {"a": torch.tensor([1.0, 0.0]).double(), "b": torch.tensor([0.0, 2.0]).double()}
    learners: dict[str, Weights] = {}
    for name, centre in centres.items():
        theta = torch.full((2,), 7.0, dtype=torch.float64)
        for _ in range(steps):
            theta = theta - rate * (theta - centre)
        learners[name] = {"theta": theta}
    expected = 0.25 * 0.75 * 5 * (1 - (1 - rate) ** steps) ** 2
    found = measure_drift(learners.items(), SHARES, learners["a"])
    assert found.drift == pytest.approx(expected) and found.distances["a"] == 0
