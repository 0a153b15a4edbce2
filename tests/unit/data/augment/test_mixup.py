"""Augmentations that mix images and labels, and what becomes of the labels in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data.augment import Chain, CropFlip, CutMix, Mixup
from allrounder.data.augment.mixup import symmetric_beta
from allrounder.distributed import BatchShard
from allrounder.objectives import Adversarial, Natural
from allrounder.objectives.base import cross_entropy_loss
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Batch, Context
from tests.reference import augment as reference
from tests.support.networks import Tiny, blobs

BOTH = pytest.mark.parametrize("cls", [Mixup, CutMix])
SHAPES = {"n": st.integers(0, 5), "h": st.integers(1, 7), "w": st.integers(1, 7)}

CLOCK = Clock(epochs=10, steps_per_epoch=4)


def batch(n: int = 12, c: int = 2, h: int = 6, w: int = 7) -> Batch:
    x = Rng(7).fold_in("images").uniform(torch.empty(n, c, h, w))
    return Batch(x, torch.arange(n) % 3, torch.arange(n))


def weights(result: Batch) -> Tensor:
    assert result.weight is not None and result.partner is not None
    return result.weight


@BOTH
@given(**SHAPES, alpha=st.floats(0.05, 5), chance=st.floats(0, 1), seed=st.integers(0, 99))
def test_mixing_equals_reference(cls, n, h, w, alpha, chance, seed):
    source, rng = batch(n, 2, h, w), Rng(seed)
    result = cls(alpha=alpha, chance=chance).apply(source, rng)
    mix, num_draws, tolerance = (reference.mixup, 4, 1e-6) if cls is Mixup else (reference.cutmix, 6, 0)
    u: Any = rng.uniform(torch.empty(n, num_draws, dtype=torch.float64)).tolist()
    x, partner, weight = mix(source.x, source.y, u, alpha, chance)
    assert torch.allclose(result.x, x, rtol=0, atol=tolerance)
    assert result.partner is not None and result.partner.tolist() == partner
    assert weights(result).tolist() == pytest.approx(weight, abs=1e-6)


@BOTH
@given(alpha=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_own_label_has_at_least_half_of_the_weight(cls, alpha, seed):
    result = weights(cls(alpha=alpha).apply(batch(), Rng(seed)))
    assert bool(((result >= 0.5) & (result <= 1)).all())


def test_cutmix_weight_is_the_share_of_pixels():
    n, h, w = 300, 8, 5
    x = (torch.arange(n) / n).view(n, 1, 1, 1).expand(n, 1, h, w)
    result = CutMix().apply(Batch(x, torch.arange(n), torch.arange(n)), Rng(0))
    assert result.partner is not None
    own, other = (result.x == x, result.x == (result.partner / n).view(n, 1, 1, 1))
    assert bool((own | other).all())
    mixed = result.partner != result.y  # an image may meet itself
    shares = own.double().mean((1, 2, 3)).float()
    assert torch.allclose(shares[mixed], weights(result)[mixed], atol=1e-6) and mixed.sum() > 290
    corner = other[:, 0, 0, 0] & ~other[:, 0, h // 2, w // 2]
    assert corner.any(), "a frame is filled too"
    assert abs(float(weights(result).mean()) - 0.755) < 0.04


def test_mixup_weight_is_that_of_the_image():
    n = 300
    x = (torch.arange(n, dtype=torch.float64) / n).view(n, 1, 1, 1)
    result = Mixup().apply(Batch(x, torch.arange(n), torch.arange(n)), Rng(0))
    assert result.partner is not None
    mixed = weights(result) * x.flatten() + (1 - weights(result)) * result.partner / n
    assert torch.allclose(result.x.flatten(), mixed, atol=1e-12)
    assert abs(float(weights(result).mean()) - 0.75) < 0.03
    assert sorted(result.partner.tolist()) == list(range(n))


@BOTH
def test_chance_zero_mixes_nothing(cls):
    result = cls(chance=0).apply(batch(), Rng(0))
    assert torch.equal(result.x, batch().x) and bool((weights(result) == 1).all())
    some = weights(cls(chance=0.5).apply(batch(400), Rng(0))) == 1
    assert 150 < int(some.sum()) < 260


def test_small_alpha_mixes_almost_nothing():
    assert float(weights(Mixup(alpha=1e-3).apply(batch(200), Rng(0))).mean()) > 0.99


@pytest.mark.parametrize(
    ("alpha", "law"),
    [
        (1.0, lambda p: p),
        (0.5, lambda p: (torch.pi * p / 2).sin().square()),  # the arcsine law
        (1.5, None),
    ],
)
def test_symmetric_beta_has_beta_distribution(alpha, law):
    n = 20_000
    u, v = Rng(0).uniform(torch.empty(2, n, dtype=torch.float64)).unbind(0)
    result = symmetric_beta(alpha, u, v).sort().values
    assert result.min() >= 0 and result.max() <= 1
    assert abs(float(result.mean()) - 0.5) < 0.01
    assert float(result.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    if law is not None:
        levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        assert float((result - law(levels)).abs().max()) < 0.015


def test_chain_can_end_with_label_mixing():
    result = Chain(steps=(CropFlip(pad=1), CutMix())).apply(batch(), Rng(0))
    cropped = CropFlip(pad=1).apply(batch(), Rng(0).fold_in("step", 0))
    assert torch.equal(result.x, CutMix().apply(cropped, Rng(0).fold_in("step", 1)).x)
    assert weights(result).min() < 1


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mixed_loss_is_weighted_mean_over_both_labels(smoothing):
    mixed = replace(Mixup().apply(batch(), Rng(0)), label_smoothing=smoothing)
    logits = Rng(1).normal(torch.empty(12, 3))
    assert mixed.partner is not None
    own, other = (
        F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
        for y in (mixed.y, mixed.partner)
    )
    result = cross_entropy_loss(logits, mixed)
    expected = (weights(mixed) * own + (1 - weights(mixed)) * other).mean()
    assert torch.allclose(result.total, expected, atol=1e-6)
    assert result.parts["accuracy"] == (logits.argmax(1) == mixed.y).float().mean()
    targets = mixed.targets(3)
    assert torch.allclose(targets.sum(1), torch.ones(12)) and bool((targets >= 0).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_unmixed_loss_equals_cross_entropy_of_targets(smoothing):
    plain, logits = replace(batch(), label_smoothing=smoothing), Rng(1).normal(torch.empty(12, 3))
    expected = F.cross_entropy(logits, plain.y, label_smoothing=smoothing)
    assert torch.equal(cross_entropy_loss(logits, plain).total, expected)
    assert torch.allclose(F.cross_entropy(logits, plain.targets(3)), expected, atol=1e-6)


def test_partner_without_weight_is_refused():
    with pytest.raises(AssertionError, match="partners and weights"):
        replace(batch(), partner=batch().y)


def learner(objective: Any, name: str, **more: Any) -> Learner:
    task = Task(name=name, objective=objective, lr=Constant(value=0.1), augment=Mixup(), **more)
    with Rng(0).seed_global():
        model: nn.Module = Tiny().double()
    return Learner(task, model, BatchShard(), 5, Clock(1, 9, "epoch"))


def first() -> Batch:
    index = torch.arange(12)
    return Batch(blobs().train.fetch(index), blobs().train.labels[index], index)


def test_learner_attacks_the_larger_label_and_fits_both(monkeypatch: pytest.MonkeyPatch):
    trainee = learner(Adversarial(threat=Threat.parse("Linf:0.1")), "linf", label_smoothing=0.1)
    prepared = trainee.prepare_batch(first(), 1)
    assert weights(prepared).dtype == prepared.x.dtype == torch.float64 and prepared.label_smoothing == 0.1
    attacked: list[Tensor] = []

    def perturb(attack: Any, model: Any, x: Tensor, y: Tensor, *rest: Any, **more: Any) -> Any:
        attacked.append(y)
        return real(attack, model, x, y, *rest, **more)

    from allrounder.objectives import base

    real = base.perturb
    monkeypatch.setattr(base, "perturb", perturb)
    loss = trainee.step(first(), 1)
    assert torch.equal(attacked[0], first().y)
    assert bool(loss.total.isfinite())


def test_tasks_of_one_augment_stream_mix_equally():
    one, other = (learner(Natural(), name).prepare_batch(first(), 4) for name in ("a", "b"))
    own = learner(Natural(), "b", augment_stream="own").prepare_batch(first(), 4)
    assert torch.equal(one.x, other.x) and torch.equal(weights(one), weights(other))
    assert not torch.equal(one.x, own.x)


def test_natural_loss_of_mixed_images_uses_mixed_targets():
    trainee = learner(Natural(), "a")
    prepared = trainee.prepare_batch(first(), 1)
    with torch.no_grad():
        expected = F.cross_entropy(trainee.model.train()(prepared.x), prepared.targets(3))
    ctx = Context(1, CLOCK, Rng(0), {})
    assert torch.allclose(Natural().loss(trainee.model, prepared, None, ctx).total, expected)
