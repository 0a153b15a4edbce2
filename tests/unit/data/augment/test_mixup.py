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
from tests.reference import augment as slow
from tests.support.networks import Tiny, blobs

BOTH = pytest.mark.parametrize("cls", [Mixup, CutMix])
SHAPES = {"n": st.integers(0, 5), "h": st.integers(1, 7), "w": st.integers(1, 7)}

CLOCK = Clock(epochs=10, steps_per_epoch=4)


def batch(n: int = 12, c: int = 2, h: int = 6, w: int = 7) -> Batch:
    x = Rng(7).fold_in("images").uniform(torch.empty(n, c, h, w))
    return Batch(x, torch.arange(n) % 3, torch.arange(n))


def weights(found: Batch) -> Tensor:
    assert found.weight is not None and found.partner is not None
    return found.weight


@given(**SHAPES, alpha=st.floats(0.05, 5), chance=st.floats(0, 1), seed=st.integers(0, 99))
def test_mixup_equals_its_slow_twin(n, h, w, alpha, chance, seed):
    given_, rng = batch(n, 2, h, w), Rng(seed)
    found = Mixup(alpha=alpha, chance=chance).apply(given_, rng)
    u: Any = rng.uniform(torch.empty(n, 4, dtype=torch.float64)).tolist()
    x, partner, weight = slow.mixup(given_.x, given_.y, u, alpha, chance)
    assert torch.allclose(found.x, x, rtol=0, atol=1e-6)
    assert found.partner is not None and found.partner.tolist() == partner
    assert weights(found).tolist() == pytest.approx(weight, abs=1e-6)


@given(**SHAPES, alpha=st.floats(0.05, 5), chance=st.floats(0, 1), seed=st.integers(0, 99))
def test_cutmix_equals_its_slow_twin(n, h, w, alpha, chance, seed):
    given_, rng = batch(n, 2, h, w), Rng(seed)
    found = CutMix(alpha=alpha, chance=chance).apply(given_, rng)
    u: Any = rng.uniform(torch.empty(n, 6, dtype=torch.float64)).tolist()
    x, partner, weight = slow.cutmix(given_.x, given_.y, u, alpha, chance)
    assert torch.equal(found.x, x)
    assert found.partner is not None and found.partner.tolist() == partner
    assert weights(found).tolist() == pytest.approx(weight, abs=1e-6)


@BOTH
@given(alpha=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_the_own_label_has_at_least_half_of_the_weight(cls, alpha, seed):
    found = weights(cls(alpha=alpha).apply(batch(), Rng(seed)))
    assert bool(((found >= 0.5) & (found <= 1)).all())


def test_the_weight_in_cutmix_is_the_share_of_the_pixels():
    n, h, w = 300, 8, 5
    x = (torch.arange(n) / n).view(n, 1, 1, 1).expand(n, 1, h, w)
    found = CutMix().apply(Batch(x, torch.arange(n), torch.arange(n)), Rng(0))
    assert found.partner is not None
    own, other = (found.x == x, found.x == (found.partner / n).view(n, 1, 1, 1))
    assert bool((own | other).all())
    mixed = found.partner != found.y  # an image may meet itself
    shares = own.double().mean((1, 2, 3)).float()
    assert torch.allclose(shares[mixed], weights(found)[mixed], atol=1e-6) and mixed.sum() > 290
    corner = other[:, 0, 0, 0] & ~other[:, 0, h // 2, w // 2]
    assert corner.any(), "a frame is filled too"
    assert abs(float(weights(found).mean()) - 0.755) < 0.04


def test_the_weight_in_mixup_is_that_of_the_image():
    n = 300
    x = (torch.arange(n, dtype=torch.float64) / n).view(n, 1, 1, 1)
    found = Mixup().apply(Batch(x, torch.arange(n), torch.arange(n)), Rng(0))
    assert found.partner is not None
    mixed = weights(found) * x.flatten() + (1 - weights(found)) * found.partner / n
    assert torch.allclose(found.x.flatten(), mixed, atol=1e-12)
    assert abs(float(weights(found).mean()) - 0.75) < 0.03
    assert sorted(found.partner.tolist()) == list(range(n))


@BOTH
def test_without_a_chance_nothing_is_mixed(cls):
    found = cls(chance=0).apply(batch(), Rng(0))
    assert torch.equal(found.x, batch().x) and bool((weights(found) == 1).all())
    some = weights(cls(chance=0.5).apply(batch(400), Rng(0))) == 1
    assert 150 < int(some.sum()) < 260


def test_a_small_alpha_mixes_almost_nothing():
    assert float(weights(Mixup(alpha=1e-3).apply(batch(200), Rng(0))).mean()) > 0.99


@pytest.mark.parametrize(
    ("alpha", "law"),
    [
        (1.0, lambda p: p),
        (0.5, lambda p: (torch.pi * p / 2).sin().square()),  # the arcsine law
        (1.5, None),
    ],
)
def test_two_uniform_numbers_become_a_beta_number(alpha, law):
    n = 20_000
    u, v = Rng(0).uniform(torch.empty(2, n, dtype=torch.float64)).unbind(0)
    found = symmetric_beta(alpha, u, v).sort().values
    assert found.min() >= 0 and found.max() <= 1
    assert abs(float(found.mean()) - 0.5) < 0.01
    assert float(found.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    if law is not None:
        levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        assert float((found - law(levels)).abs().max()) < 0.015


def test_labels_are_mixed_at_the_end_of_a_chain():
    found = Chain(steps=(CropFlip(pad=1), CutMix())).apply(batch(), Rng(0))
    assert torch.equal(
        found.x,
        CutMix()
        .apply(CropFlip(pad=1).apply(batch(), Rng(0).fold_in("step", 0)), Rng(0).fold_in("step", 1))
        .x,
    )
    assert weights(found).min() < 1


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_weighted_mean_of_that_of_both_labels(smoothing):
    mixed = replace(Mixup().apply(batch(), Rng(0)), label_smoothing=smoothing)
    logits = Rng(1).normal(torch.empty(12, 3))
    assert mixed.partner is not None
    own, other = (
        F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
        for y in (mixed.y, mixed.partner)
    )
    found = cross_entropy_loss(logits, mixed)
    expected = (weights(mixed) * own + (1 - weights(mixed)) * other).mean()
    assert torch.allclose(found.total, expected, atol=1e-6)
    assert found.parts["accuracy"] == (logits.argmax(1) == mixed.y).float().mean()
    targets = mixed.targets(3)
    assert torch.allclose(targets.sum(1), torch.ones(12)) and bool((targets >= 0).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_without_mixing_the_loss_is_what_it_was_and_targets_agree_with_it(smoothing):
    plain, logits = replace(batch(), label_smoothing=smoothing), Rng(1).normal(torch.empty(12, 3))
    expected = F.cross_entropy(logits, plain.y, label_smoothing=smoothing)
    assert torch.equal(cross_entropy_loss(logits, plain).total, expected)
    assert torch.allclose(F.cross_entropy(logits, plain.targets(3)), expected, atol=1e-6)


def test_partners_and_weights_come_together():
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


def test_a_learner_attacks_the_larger_label_and_fits_both(monkeypatch: pytest.MonkeyPatch):
    who = learner(Adversarial(threat=Threat.parse("Linf:0.1")), "linf", label_smoothing=0.1)
    seen = who.prepare_batch(first(), 1)
    assert weights(seen).dtype == seen.x.dtype == torch.float64 and seen.label_smoothing == 0.1
    attacked: list[Tensor] = []

    def perturb(attack: Any, model: Any, x: Tensor, y: Tensor, *rest: Any, **more: Any) -> Any:
        attacked.append(y)
        return real(attack, model, x, y, *rest, **more)

    from allrounder.objectives import base

    real = base.perturb
    monkeypatch.setattr(base, "perturb", perturb)
    loss = who.step(first(), 1)
    assert torch.equal(attacked[0], first().y)
    assert bool(loss.total.isfinite())


def test_tasks_of_one_stream_mix_alike():
    one, other = (
        learner(Natural(), "a").prepare_batch(first(), 4),
        learner(Natural(), "b").prepare_batch(first(), 4),
    )
    own = learner(Natural(), "b", augment_stream="own").prepare_batch(first(), 4)
    assert torch.equal(one.x, other.x) and torch.equal(weights(one), weights(other))
    assert not torch.equal(one.x, own.x)


def test_a_natural_step_on_mixed_images_descends_the_mixed_loss():
    who = learner(Natural(), "a")
    seen = who.prepare_batch(first(), 1)
    with torch.no_grad():
        expected = F.cross_entropy(who.model.train()(seen.x), seen.targets(3))
    ctx = Context(1, CLOCK, Rng(0), {})
    assert torch.allclose(Natural().loss(who.model, seen, None, ctx).total, expected)
