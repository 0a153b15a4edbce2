"""Lemma 1 of Generalist++ is false as printed, and what survives; the proofs are in docs/guide/theory.md."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

GAMMA = torch.tensor([0.5, 0.5], dtype=torch.float64)


def mix(values: Tensor, gamma: Tensor = GAMMA) -> Tensor:
    return torch.tensordot(gamma, values, 1)


def sides_of_lemma(u: Tensor, v: Tensor) -> tuple[float, float]:
    """Both sides of Lemma 1 for phi(u) = u^2."""
    left = (mix(u) ** 2 - mix(v) ** 2).abs()
    return float(left), float(mix((u**2 - v**2).abs()))


def test_lemma_1_is_false_for_a_square():
    left, right = sides_of_lemma(
        torch.tensor([1.0, 10.0], dtype=torch.float64), torch.tensor([-1.0, 10.0], dtype=torch.float64)
    )
    assert (left, right) == (10.0, 0.0), "and only one learner differs, as in Theorem 2"


def test_lemma_1_is_false_for_the_cross_entropy_of_predictions_of_one_sign():
    # Both predictions of the first learner have nearly no loss; the second learner is undecided.
    y = torch.tensor(0)
    u, v, same = (torch.tensor([z, 0.0], dtype=torch.float64) for z in (20.0, 10.0, -12.0))
    first, second = (F.cross_entropy(mix(torch.stack([z, same])), y) for z in (u, v))
    alone = (F.cross_entropy(u, y) - F.cross_entropy(v, y)).abs() / 2
    assert float((first - second).abs()) > 1 and float(alone) < 1e-4


def jensen_gap(logits: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
    members = torch.stack([F.cross_entropy(z, y) for z in logits])
    return mix(members, gamma) - F.cross_entropy(mix(logits, gamma), y)


@pytest.mark.parametrize("seed", range(50))
def test_what_survives_holds_for_random_predictions(seed: int):
    generator = torch.Generator().manual_seed(seed)
    u, v = (5 * torch.randn(3, 10, dtype=torch.float64, generator=generator) for _ in range(2))
    gamma = torch.rand(3, dtype=torch.float64, generator=generator)
    gamma /= gamma.sum()
    y = torch.tensor(seed % 10)
    left = (F.cross_entropy(mix(u, gamma), y) - F.cross_entropy(mix(v, gamma), y)).abs()
    by_loss = sum(
        g * (F.cross_entropy(a, y) - F.cross_entropy(b, y)).abs() for g, a, b in zip(gamma, u, v, strict=True)
    )
    gaps = jensen_gap(u, y, gamma), jensen_gap(v, y, gamma)
    assert left <= by_loss + max(gaps) + 1e-12, "with the Jensen gap"
    assert left <= 2**0.5 * mix((u - v).norm(dim=1), gamma) + 1e-12, "with distances of predictions"
    for logits, gap in zip((u, v), gaps, strict=True):
        variance = mix((logits - mix(logits, gamma)).norm(dim=1) ** 2, gamma)
        assert 0 <= gap <= variance / 4 + 1e-12, "the Hessian has no eigenvalue above one half"


def test_lemma_1_holds_for_affine_functions():
    u, v = (torch.randn(2, dtype=torch.float64) for _ in range(2))
    assert (mix(3 * u + 1) - mix(3 * v + 1)).abs() <= mix((3 * u - 3 * v).abs()) + 1e-12
