"""The drift of learners and their distances from the global weights."""

from __future__ import annotations

import math

import pytest
import torch

from allrounder.nn.drift import measure_drift


def random_weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv": (4, 3, 3, 3), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_the_drift_equals_its_definition_around_the_mixture():
    learners = {name: random_weights(seed) for seed, name in enumerate("abc")}
    shares, theta_g = {"a": 0.5, "b": 0.2, "c": 0.3}, random_weights(9)
    flat = {
        name: torch.cat([tensor.double().flatten() for tensor in weights.values()])
        for name, weights in learners.items()
    }
    centre = sum(shares[name] * vector for name, vector in flat.items())
    found = measure_drift(learners.items(), shares, theta_g)
    expected = sum(shares[name] * float((vector - centre).square().sum()) for name, vector in flat.items())
    assert found.drift == pytest.approx(expected, rel=1e-13)
    reference = torch.cat([tensor.double().flatten() for tensor in theta_g.values()])
    for name, vector in flat.items():
        assert found.distances[name] == pytest.approx(float((vector - reference).norm()), rel=1e-13)


def test_two_learners_at_distance_d_have_the_drift_of_a_two_point_distribution():
    a, b = {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 4.0])}
    found = measure_drift([("a", a), ("b", b)], {"a": 0.25, "b": 0.75}, {"w": torch.zeros(2)})
    assert found.drift == 0.25 * 0.75 * 25 and found.distances == {"a": 3.0, "b": 4.0}


def test_equal_learners_have_no_drift_at_all_and_close_ones_keep_their_digits():
    far = {"w": torch.full((1000,), 1e6, dtype=torch.float64)}
    near = {"w": far["w"] + 2.0**-20}
    equal = measure_drift([("a", far), ("b", far)], {"a": 0.3, "b": 0.7}, far)
    assert equal.drift == 0 and equal.distances == {"a": 0, "b": 0}
    close = measure_drift([("a", far), ("b", near)], {"a": 0.5, "b": 0.5}, far)
    assert close.drift == pytest.approx(0.25 * 1000 * 2.0**-40, rel=1e-12)


def test_a_learner_with_share_zero_adds_no_drift_but_has_a_distance():
    far, near = {"w": torch.full((4,), 50.0)}, {"w": torch.ones(4)}
    for order in ([("far", far), ("near", near)], [("near", near), ("far", far)]):
        found = measure_drift(order, {"far": 0.0, "near": 1.0}, {"w": torch.zeros(4)})
        assert found.drift == 0 and found.distances == {"far": 100.0, "near": 2.0}


def test_the_order_in_which_memory_holds_a_tensor_changes_no_bit_and_no_weight():
    weights = {"conv": torch.randn(16, 8, 3, 3)}
    as_trained = {"conv": weights["conv"].to(memory_format=torch.channels_last)}
    before = weights["conv"].clone()
    theta_g, shares = {"conv": torch.randn(16, 8, 3, 3)}, {"a": 0.4, "b": 0.6}
    first = measure_drift([("a", theta_g), ("b", weights)], shares, theta_g)
    second = measure_drift([("a", theta_g), ("b", as_trained)], shares, theta_g)
    assert first == second and math.isfinite(first.drift)
    assert torch.equal(weights["conv"], before)


def test_the_order_of_the_tensors_of_a_learner_changes_no_bit():
    shares, theta_g = {"a": 0.4, "b": 0.6}, {str(key): torch.randn(50) for key in range(20)}
    a, b = ({key: torch.randn(50) for key in theta_g} for _ in shares)
    backwards = dict(reversed(b.items()))
    assert measure_drift([("a", a), ("b", b)], shares, theta_g) == measure_drift(
        [("a", a), ("b", backwards)], shares, theta_g
    )


def test_float64_weights_are_not_changed():
    a, b = {"w": torch.zeros(3, dtype=torch.float64)}, {"w": torch.ones(3, dtype=torch.float64)}
    measure_drift([("a", a), ("b", b)], {"a": 0.5, "b": 0.5}, a)
    assert not a["w"].any() and bool(b["w"].all())
