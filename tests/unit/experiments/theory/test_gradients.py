"""Inner products of gradients, by hand."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.experiments.theory.gradients import (
    NUM_BATCHES,
    batch_gradients,
    compare_gradients,
    draw_batches,
)
from allrounder.nn.state import clone, weights_of
from allrounder.objectives import Natural
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from tests.support.networks import blobs, tiny

TASK = Task(name="natural", objective=Natural(), lr=Constant(value=0.1))
CLOCK = Clock(2, 3)


def test_gradients_of_quadratics_have_the_products_of_their_distances():
    # The gradient of 1/2 ||theta - x_i||^2 is theta - x_i.
    theta = torch.tensor([1.0, 1.0])
    grads = [theta - torch.tensor(x) for x in ([0.0, 1.0], [1.0, 0.0], [-1.0, 1.0])]
    found = compare_gradients(grads)  # (1, 0), (0, 1), (2, 0)
    assert found.inner == pytest.approx((0 + 2 + 0) / 3) and found.cosine == pytest.approx(1 / 3)
    assert found.norm == pytest.approx(4 / 3)


def test_the_error_is_that_of_leaving_out_one_mini_batch():
    grads = list(torch.randn(6, 4, dtype=torch.float64))
    found = compare_gradients(grads)
    without = []
    for left_out in range(6):
        rest = [grad for number, grad in enumerate(grads) if number != left_out]
        products = [float(a @ b) for a, b in combinations(rest, 2)]
        without.append(sum(products) / len(products))
    mean = sum(without) / 6
    expected = math.sqrt(5 / 6 * sum((value - mean) ** 2 for value in without))
    assert found.inner_error == pytest.approx(expected)


def test_two_gradients_have_no_error():
    assert math.isnan(compare_gradients([torch.ones(2), torch.ones(2)]).inner_error)


def test_gradients_are_those_of_the_objective_in_training_mode_at_the_given_weights():
    data, network = blobs(48), tiny()
    weights = clone(weights_of(tiny()))
    before = clone(weights_of(network))
    batches = draw_batches(data.train, TASK, 3, network, Rng(0))
    assert len(batches) == NUM_BATCHES and all(len(batch) == 3 for batch in batches)
    grads = batch_gradients(network, weights, TASK, batches, CLOCK, Rng(0))
    reference = tiny().train()
    reference.load_state_dict(weights)
    loss = F.cross_entropy(reference(batches[1].x), batches[1].y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(reference.parameters()))])
    assert torch.allclose(grads[1], expected, atol=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(network).items())


def test_mini_batches_are_disjoint_and_fit_small_splits():
    network: nn.Module = tiny()
    batches = draw_batches(blobs(48).train, TASK, 64, network, Rng(0))
    rows = torch.cat([batch.index for batch in batches])
    assert len(rows.unique()) == len(rows) and len(batches[0]) == len(blobs(48).train) // NUM_BATCHES
