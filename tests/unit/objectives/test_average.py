"""AVG and MAX: several threats in one loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from allrounder.attacks import Mim, Pgd, perturb
from allrounder.attacks.worst_of import Hardest
from allrounder.config.time import Clock
from allrounder.objectives import Adversarial, Average, Objective, Worst
from allrounder.rng import Draws
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, Context, NormLayers
from tests.support.networks import Tiny, blobs

LINF, L2, L1 = (Threat.read(text) for text in ("Linf:0.1", "L2:0.5", "L1:3"))
DATA, CLOCK = blobs(), Clock(epochs=10, steps=4)


def network() -> nn.Module:
    with Draws(0).ambient():
        return Tiny().double()


def batch() -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).double(), DATA.train.labels[index], index)


def context() -> Context:
    return Context(1, CLOCK, Draws(3).at("task", 1), {})


def gradients(model: nn.Module, total: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(total, list(model.parameters())))


def test_the_gradient_of_the_average_is_the_mean_of_the_gradients_with_fixed_statistics():
    model, given, ctx = network().eval(), batch(), context()
    objective = Average(against=(LINF, L2, L1))
    crafted = objective.craft(model, given, ctx)
    mine = gradients(model, objective.loss(model, given, crafted, ctx).total)
    single = [
        gradients(model, F.cross_entropy(model(part), given.y)) for part in crafted.x.chunk(3) if len(part)
    ]
    for whole, *parts in zip(mine, *single, strict=True):
        assert torch.allclose(whole, torch.stack(parts).mean(0), atol=1e-12)


def test_the_average_trains_on_one_image_of_every_threat_in_one_pass():
    model, given, ctx = network().train(), batch(), context()
    objective = Average(against=(LINF, L2))
    crafted = objective.craft(model, given, ctx)
    linf, l2 = crafted.x.chunk(2)
    assert LINF.contains(given.x, linf).all() and L2.contains(given.x, l2).all()
    loss = objective.loss(model, given, crafted, ctx)
    expected = F.cross_entropy(network().train()(torch.cat([linf, l2])), torch.cat([given.y, given.y]))
    assert torch.equal(loss.total, expected)
    assert int(model.bn.num_batches_tracked) == 1  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]


def test_mixed_labels_and_marks_are_repeated_with_the_images():
    given = replace(
        batch(),
        partner=(batch().y + 1) % 3,
        weight=torch.full((12,), 0.7, dtype=torch.float64),
        extra=torch.arange(12) > 5,
    )
    model, ctx = network().train(), context()
    objective = Average(against=(LINF, L2), attack=Pgd(steps=1))
    crafted = objective.craft(model, given, ctx)
    target = torch.cat([given.targets(3)] * 2)
    expected = F.cross_entropy(network().train()(crafted.x), target)
    assert torch.allclose(objective.loss(model, given, crafted, ctx).total, expected)


def test_the_worst_loss_is_at_least_that_of_every_threat_alone():
    model, given, ctx = network(), batch(), context()
    for parameter in model.parameters():
        parameter.data.mul_(2)
    objective = Worst(against=(LINF, L2, L1))
    crafted = objective.craft(model, given, ctx)
    model.eval()
    found = F.cross_entropy(model(crafted.x), given.y, reduction="none")
    alone = torch.stack(
        [
            F.cross_entropy(
                model(
                    perturb(
                        Pgd(steps=10, step=0.25),
                        model,
                        given.x,
                        given.y,
                        threat,
                        ctx.draws.at("attack").at("threat", number),
                    ).x
                ),
                given.y,
                reduction="none",
            )
            for number, threat in enumerate(objective.against)
        ]
    )
    assert torch.allclose(found, alone.amax(0), atol=1e-9)
    assert len(set(alone.argmax(0).tolist())) > 1, "no choice is made here"
    assert crafted.loss is not None and torch.allclose(crafted.loss, found, atol=1e-9)
    assert len(crafted.x) == len(given)


def test_of_equal_candidates_the_first_is_kept():
    def flat(x: Tensor) -> Tensor:
        return torch.zeros(len(x), 3, dtype=x.dtype) + 0 * x.sum()

    given = batch()
    both = perturb(Hardest(attack=Pgd(steps=1)), flat, given.x, given.y, AnyOf((LINF, L2)), Draws(0))
    first = perturb(Pgd(steps=1), flat, given.x, given.y, LINF, Draws(0).at("threat", 0))
    assert torch.equal(both.x, first.x)


@pytest.mark.parametrize("cls", [Average, Worst])
@pytest.mark.parametrize(("layers", "moves"), [("eval", False), ("train", True), ("train_frozen", False)])
def test_crafting_leaves_running_statistics_alone_unless_asked(
    cls: type[Average] | type[Worst], layers: NormLayers, moves: bool
):
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cls(against=(LINF, L2), attack=Pgd(steps=1), norm_layers=layers).craft(model, batch(), context())
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(moved) == moves
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("cls", [Average, Worst])
@pytest.mark.parametrize("against", [(), (LINF,), (LINF, LINF), (LINF, L2, LINF)], ids=len)
def test_fewer_than_two_different_threats_are_refused(
    cls: type[Average] | type[Worst], against: tuple[Threat, ...]
):
    with pytest.raises(ValidationError, match="two or more different threats, got"):
        cls(against=against)


@pytest.mark.parametrize("cls", [Average, Worst])
def test_an_attack_that_cannot_work_in_one_of_the_norms_is_refused(
    cls: type[Average] | type[Worst], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Mim, "norms", frozenset({type(LINF.norm)}))
    with pytest.raises(ValidationError, match=r"got the threat L2:0\.5"):
        cls(against=(LINF, L2), attack=Mim())


def test_every_threat_is_trained_against():
    for objective in (Average(against=(LINF, L2)), Worst(against=(LINF, L2))):
        assert isinstance(objective, Objective) and objective.threats() == (LINF, L2)
    assert Average(against=(LINF, L2)).attack == Adversarial(threat=LINF).attack
