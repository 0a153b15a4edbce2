from __future__ import annotations

import pytest
import torch

from allrounder.attacks.losses import LOSSES, cross_entropy, hinge, kl, kl_from_natural, margin
from tests.reference import attacks as twin


def test_losses_equal_their_definitions():
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30
    natural, y = z.flip(0), torch.tensor([0, 1, 2, 3, 0])
    for name, loss in LOSSES.items():
        expected = [float(twin.loss_of(name, z[i], int(y[i]), natural[i])) for i in range(5)]
        assert loss(z, y, natural).tolist() == pytest.approx(expected), name


def test_the_margin_is_positive_exactly_where_the_prediction_is_wrong():
    z, y = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    assert torch.equal(margin(z, y) > 0, z.argmax(1) != y)


def test_the_hinge_is_flat_beyond_kappa():
    z, y = torch.tensor([[0.0, 3.0], [0.0, 1.0]], requires_grad=True), torch.tensor([0, 0])
    loss = hinge(z, y, kappa=2.0)
    (g,) = torch.autograd.grad(loss.sum(), z)
    assert loss.tolist() == [0.0, -1.0]
    assert g.tolist() == [[0.0, 0.0], [-1.0, 1.0]]


def test_drift_is_zero_and_flat_at_the_natural_prediction():
    z = torch.randn(3, 4, requires_grad=True)
    loss = kl_from_natural(z, torch.zeros(3, dtype=torch.long), z.detach())
    (g,) = torch.autograd.grad(loss.sum(), z)
    assert loss.abs().max() < 1e-6 and g.abs().max() < 1e-6


def test_kl_is_differentiable_in_both_and_survives_certainty():
    p, q = (
        torch.tensor([[80.0, -80.0]], requires_grad=True),
        torch.tensor([[-80.0, 80.0]], requires_grad=True),
    )
    loss = kl(p, q)
    grads = torch.autograd.grad(loss.sum(), (p, q))
    assert loss.item() == pytest.approx(160) and all(g.isfinite().all() for g in grads)


def test_one_class_has_a_cross_entropy_but_no_margin():
    z, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)
    assert cross_entropy(z, y).tolist() == [0, 0]
    for loss in (margin, hinge):
        with pytest.raises(ValueError, match="compares two classes, the network has one; use the loss ce"):
            loss(z, y)
