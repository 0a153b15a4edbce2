"""Objectives that trade natural for robust accuracy: their identities, and their losses by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from allrounder.attacks import Pgd
from allrounder.data.augment.mixup import symmetric_beta
from allrounder.objectives import Adversarial, Fat, HalfHalf, Iat, Mart, Natural, Score, Trades
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.support.steps import (
    NATURAL,
    ROBUST,
    assert_equal_steps,
    batch,
    context,
    loss_with_logits,
    network,
    step,
)

THREAT = Threat.parse("Linf:0.1")
ATTACK = Pgd(steps=3)
EVERY: dict[str, Any] = {
    "half-half": HalfHalf,
    "trades": Trades,
    "mart": Mart,
    "fat": Fat,
    "iat": Iat,
    "score": Score,
}


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_half_half_without_crafted_images_is_natural_training(forward: Any):
    objective = HalfHalf(threat=THREAT, beta=0, forward=forward)
    assert_equal_steps(objective, Natural())
    assert objective.craft(network(), batch(), context()) is None


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_half_half_without_natural_images_is_adversarial_training(forward: Any):
    assert_equal_steps(
        HalfHalf(threat=THREAT, attack=ATTACK, beta=1, forward=forward),
        Adversarial(threat=THREAT, attack=ATTACK),
    )


def test_half_half_weighs_crafted_images_first_and_natural_ones_second():
    loss, model = loss_with_logits(HalfHalf(threat=THREAT, beta=0.25), ROBUST, NATURAL)
    y = batch(4).y
    expected = 0.25 * F.cross_entropy(ROBUST, y) + 0.75 * F.cross_entropy(NATURAL, y)
    assert torch.allclose(loss.total, expected, rtol=1e-12)
    assert torch.equal(model.seen[1], batch(4).x.double()) and not torch.equal(*model.seen)
    accuracies = [(logits.argmax(1) == y).float().mean() for logits in (NATURAL, ROBUST)]
    assert [loss.parts["accuracy"], loss.parts["robust"]] == accuracies


def test_a_joint_forward_shares_its_batch_statistics():
    apart, joint = (
        HalfHalf(threat=THREAT, attack=ATTACK, forward="separate"),
        HalfHalf(threat=THREAT, attack=ATTACK, forward="joint"),
    )
    (first, left), (second, right) = step(apart), step(joint)
    assert left["bn.num_batches_tracked"] == 2 and right["bn.num_batches_tracked"] == 1
    assert not torch.equal(first.total, second.total)
    halves, _ = loss_with_logits(apart, ROBUST, NATURAL)
    whole, model = loss_with_logits(joint, torch.cat([ROBUST, NATURAL]))
    assert torch.allclose(halves.total, whole.total, rtol=1e-12)
    assert len(model.seen) == 1 and len(model.seen[0]) == 8
    assert apart.passes() == joint.passes() == Passes(5, 5)


def test_trades_without_its_divergence_is_natural_training():
    objective = Trades(threat=THREAT, beta=0)
    assert_equal_steps(objective, Natural())
    assert objective.craft(network(), batch(), context()) is None


def test_trades_adds_the_divergence_of_both_predictions_and_descends_both():
    natural, robust = (z.clone().requires_grad_() for z in (NATURAL, ROBUST))
    loss, model = loss_with_logits(Trades(threat=THREAT, beta=6), natural, robust)
    p, q = natural.softmax(1), robust.softmax(1)
    expected = F.cross_entropy(natural, batch(4).y) + 6 * (p * (p.log() - q.log())).sum() / 4
    assert torch.allclose(loss.total, expected, rtol=1e-12)
    ours, theirs = (torch.autograd.grad(total, (natural, robust)) for total in (loss.total, expected))
    assert all(torch.allclose(a, b) and bool(a.any()) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(model.seen[0], batch(4).x.double()) and len(model.seen) == 2


def test_trades_climbs_the_divergence_from_close_to_the_image():
    assert Trades(threat=THREAT).attack == Pgd(steps=10, step=0.25, loss="kl", start="gaussian")
    assert Trades(threat=THREAT).passes() == Passes(13, 12)


def test_mart_by_hand():
    loss, _ = loss_with_logits(Mart(threat=THREAT, lam=5), NATURAL, ROBUST)
    y, total = batch(4).y.tolist(), 0.0
    for i in range(4):
        p, q = (
            [math.exp(z) / sum(map(math.exp, row)) for z in row]
            for row in (NATURAL[i].tolist(), ROBUST[i].tolist())
        )
        wrong = max(q[k] for k in range(3) if k != y[i])
        total -= math.log(q[y[i]]) + math.log(1.0001 - wrong + 1e-12)
        divergence = sum(p[k] * (math.log(p[k]) - math.log(q[k] + 1e-12)) for k in range(3))
        total += 5 * divergence * (1.0000001 - p[y[i]])
    assert float(loss.total) == pytest.approx(total / 4, rel=1e-12)


def test_mart_without_its_divergence_never_sees_natural_images():
    loss, model = loss_with_logits(Mart(threat=THREAT, lam=0), ROBUST)
    q, y = ROBUST.softmax(1), batch(4).y
    wrong = torch.stack([q[i, [k for k in range(3) if k != y[i]]].max() for i in range(4)])
    expected = F.cross_entropy(ROBUST, y) - (1.0001 - wrong + 1e-12).log().mean()
    assert torch.allclose(loss.total, expected, rtol=1e-12)
    assert len(model.seen) == 1
    assert Mart(threat=THREAT, lam=0).passes() == Mart(threat=THREAT).passes() + Passes(-1, -1)


def test_mart_is_finite_for_certain_predictions():
    sure = torch.tensor([[300.0, -300, 0]] * 4, requires_grad=True)
    wrong = torch.tensor([[-300.0, 300, 0]] * 4, requires_grad=True)
    loss, _ = loss_with_logits(Mart(threat=THREAT), sure, wrong, given=batch(4))
    grads = torch.autograd.grad(loss.total, (sure, wrong))
    assert loss.total.isfinite() and all(bool(g.isfinite().all()) for g in grads)


def test_iat_draws_separate_weights_for_natural_and_crafted_images():
    given = replace(batch(4, label_smoothing=0.2), x=batch(4).x.double())
    loss, model = loss_with_logits(Iat(threat=THREAT), NATURAL, ROBUST, given=given)
    shown, expected, weights = [given.x, (given.x + 0.05).clamp(0, 1)], 0.0, list[float]()
    for which, x, z, seen in zip(("natural", "robust"), shown, (NATURAL, ROBUST), model.seen, strict=True):
        draws = context().rng.fold_in("mix", which)
        u = draws.fold_in("weight").uniform(torch.empty(2, dtype=torch.float64))
        w, other = float(symmetric_beta(1.0, u[0], u[1])), draws.fold_in("partner").permutation(4)
        assert torch.allclose(seen, w * x + (1 - w) * x[other])
        own, partner = (
            F.cross_entropy(z, labels, label_smoothing=0.2) for labels in (given.y, given.y[other])
        )
        expected = expected + (w * own + (1 - w) * partner) / 2
        weights.append(w)
    assert torch.allclose(loss.total, torch.as_tensor(expected), rtol=1e-12)
    assert weights[0] != weights[1] and all(0 < w < 1 for w in weights)


def test_iat_attacks_images_that_are_not_mixed():
    ours, plain = (
        kind(threat=THREAT, attack=ATTACK).craft(network(), batch(), context()) for kind in (Iat, Adversarial)
    )
    assert ours is not None and plain is not None
    assert torch.equal(ours.x, plain.x)


@pytest.mark.parametrize(("layers", "moves"), [("eval", False), ("train", True), ("train_frozen", False)])
@pytest.mark.parametrize("kind", EVERY)
def test_batch_norm_while_crafting_follows_norm_layers(kind: str, layers: str, moves: bool):
    model, objective = network(), EVERY[kind](threat=THREAT, norm_layers=layers)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objective.craft(model, batch(), context())
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(moved) == moves
    assert all(name.startswith("bn.running") or name == "bn.num_batches_tracked" for name in moved)


@pytest.mark.parametrize("kind", EVERY)
def test_crafting_uses_running_statistics_as_released(kind: str):
    layers = EVERY[kind](threat=THREAT).norm_layers
    assert layers == (None if kind == "score" else "eval")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HalfHalf(threat=THREAT, beta=1.5), "less than or equal to 1"),
        (lambda: HalfHalf(threat=THREAT, forward="both"), "'separate' or 'joint'"),  # pyright: ignore[reportArgumentType]
        (lambda: Trades(threat=THREAT, beta=-1), "greater than or equal to 0"),
        (lambda: Mart(threat=THREAT, lam=-1), "greater than or equal to 0"),
        (lambda: Iat(threat=THREAT, alpha=0), "greater than 0"),
    ],
    ids=["beta above one", "unknown forward", "negative beta", "negative lam", "no alpha"],
)
def test_invalid_settings_are_refused(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()
