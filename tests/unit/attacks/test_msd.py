"""Multi steepest descent beside its slow twin, and the training made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from allrounder.attacks import Msd, perturb
from allrounder.attacks.msd import k_hot, project_l1_ball
from allrounder.config.time import Clock
from allrounder.objectives import Adversarial
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, BatchNormMode, Context, Passes
from tests.reference import msd as twin
from tests.support.networks import Tiny, blobs

LINF, L2, L1 = (Threat.parse(text) for text in ("Linf:0.1", "L2:0.6", "L1:3"))
DATA = blobs()


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().double().eval()


def images(n: int = 8) -> tuple[Tensor, Tensor]:
    index = torch.arange(n)
    x = DATA.train.fetch(index).double()
    x[:, :, 0, :3], x[:, :, 1, :3] = 0, 1  # some at the walls of the box
    return x, DATA.train.labels[index]


@pytest.mark.parametrize(
    "union", [(LINF, L2), (LINF, L2, L1), (L1, LINF)], ids=lambda u: "-".join(map(str, u))
)
def test_results_equal_the_reference(union: tuple[Threat, ...]):
    attack = Msd(steps=7, linf_step=0.3, l2_step=0.2, l1_step=1 / 3)
    model, (x, y), rng = network(), images(), Rng(5)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    result = perturb(attack, model, x, y, AnyOf(union), rng)
    ks = [int(rng.fold_in("step", t, "coordinates").integers(1, 5, 21)) for t in range(7)]
    assert all(5 <= k <= 20 for k in ks) and len(set(ks)) > 1
    budgets = {str(one.norm): one.eps for one in union}
    share = {"Linf": 0.3, "L2": 0.2, "L1": 1 / 3}
    alphas = {name: share[name] * eps for name, eps in budgets.items()}
    for i in range(len(x)):
        delta, loss = twin.search(model, x[i].numpy(), int(y[i]), budgets, alphas, ks)
        assert np.allclose(result.x[i].numpy(), x[i].numpy() + delta, atol=1e-8)
        assert result.loss is not None and float(result.loss[i]) == pytest.approx(loss, abs=1e-8)


def test_images_end_in_more_than_one_ball():
    model, (x, y) = network(), images(30)
    result = perturb(Msd(), model, x, y, AnyOf((LINF, L2)), Rng(0))
    assert not LINF.contains(x, result.x).all() and not L2.contains(x, result.x).all()


def test_the_best_loss_never_falls_with_more_steps():
    model, (x, y) = network(), images()
    losses = torch.stack(
        [
            perturb(Msd(steps=n), model, x, y, AnyOf((L1, L2, LINF)), Rng(0)).loss  # pyright: ignore[reportArgumentType]
            for n in range(1, 12)
        ]
    )
    assert (losses.diff(dim=0) >= 0).all()
    assert (losses[-1] > losses[0]).any()


def test_of_equal_candidates_the_later_norm_is_kept():
    def flat(x: Tensor) -> Tensor:
        return torch.zeros(len(x), 3, dtype=x.dtype) + 0 * x.sum()

    def slope(x: Tensor) -> Tensor:
        # One coordinate decides, and saturates: all candidates reach the same loss.
        z = (x[:, 0, 0, 0] > 0.5).to(x) + 1e-9 * (x - x.detach())[:, 0, 4, 4]
        return torch.stack([z, torch.zeros_like(z)], 1)

    x, y = torch.full((2, 1, 8, 8), 0.5, dtype=torch.float64), torch.tensor([1, 1])
    result = perturb(Msd(steps=1), slope, x, y, AnyOf((LINF, L2, L1)), Rng(0))
    expected = x.clone()
    expected[:, 0, 4, 4] += LINF.eps / 4
    assert torch.allclose(result.x, expected)
    still = perturb(Msd(steps=2), flat, x, y, AnyOf((LINF, L2)), Rng(0))
    assert torch.equal(still.x, x)


def test_an_l1_step_moves_the_steepest_coordinates_that_have_room():
    g = torch.tensor([5.0, -4, 3, -2, 1, 0.5, 9, 8]).view(1, 1, 2, 4)
    x = torch.tensor([0.95, 0.05, 0.5, 0.5, 0.5, 0.5, 0.0, 1.0]).view(1, 1, 2, 4)
    hot = k_hot(g, x, 2, gap=0.1).flatten().tolist()
    assert hot == [0, 0, 1, -1, 0, 0, 0, 0]
    inward = k_hot(-g, x, 3, gap=0.1).flatten().tolist()
    assert inward == [-1, 1, -1, 0, 0, 0, 0, 0]
    assert k_hot(0 * g, x, 8, gap=0.1).abs().sum() == 0


@pytest.mark.parametrize("eps", [0.5, 3.0, 100.0])
def test_the_projection_on_the_l1_ball_is_the_closest_point(eps: float):
    d = Rng(2).normal(torch.empty(4, 2, 3, 3, dtype=torch.float64))
    result = project_l1_ball(d, eps)
    for mine, given in zip(result, d, strict=True):
        assert np.allclose(mine.numpy(), twin.l1_ball(given.numpy(), eps), atol=1e-12)
    assert torch.allclose(project_l1_ball(result, eps), result, atol=1e-12)


def test_small_images_have_fewer_coordinates_to_move():
    x, y = torch.full((2, 1, 1, 2), 0.5), torch.tensor([0, 1])

    def linear(x: Tensor) -> Tensor:
        return x.flatten(1)

    result = perturb(Msd(), linear, x, y, AnyOf((Threat.parse("L1:0.5"), LINF)), Rng(0))
    assert (result.x != x).any(dim=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("layers", "moves"), [(None, False), ("train", True), ("eval", False), ("train_frozen", False)]
)
def test_crafting_moves_running_statistics_in_training_mode(layers: BatchNormMode | None, moves: bool):
    fields: dict[str, Any] = {} if layers is None else {"norm_layers": layers}
    objective = Adversarial(threat=AnyOf((LINF, L2)), attack=Msd(steps=3), **fields)
    model, (x, y) = network().train(), images()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = Batch(x, y, torch.arange(len(x)))
    objective.craft(model, given, Context(1, Clock(2, 2), Rng(0), {}))
    count = int(model.bn.num_batches_tracked)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    assert count == (3 * (1 + 2) if moves else 0)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(changed) == moves


def test_loss_is_the_cross_entropy_at_the_result():
    objective = Adversarial(threat=AnyOf((LINF, L2)), attack=Msd(), norm_layers="train")
    model, (x, y) = network().train(), images()
    ctx, given = Context(1, Clock(2, 2), Rng(0), {}), Batch(x, y, torch.arange(len(x)))
    crafted = objective.craft(model, given, ctx)
    assert crafted is not None
    assert torch.equal(
        objective.loss(model, given, crafted, ctx).total, F.cross_entropy(network().train()(crafted.x), y)
    )
    assert crafted.passes + Passes(1, 1) == objective.passes() == Passes(31, 11)


def test_one_threat_is_refused():
    with pytest.raises(ValidationError, match="two or more different threats, got Linf"):
        Adversarial(threat=AnyOf((LINF,)), attack=Msd())
