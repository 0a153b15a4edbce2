"""AVG and MAX: several threats in one loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from allrounder.attacks import Attack, Mim, Pgd, WorstOf, perturb
from allrounder.config.fields import OneOf
from allrounder.config.time import Clock
from allrounder.objectives import OBJECTIVES, Adversarial, Average, Objective
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, BatchNormMode, Context, Passes
from tests.support.networks import Tiny, blobs

LINF, L2, L1 = (Threat.parse(text) for text in ("Linf:0.1", "L2:0.5", "L1:3"))
DATA, CLOCK = blobs(), Clock(epochs=10, steps_per_epoch=4)


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().double()


def batch() -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).double(), DATA.train.labels[index], index)


def context() -> Context:
    return Context(1, CLOCK, Rng(3).fold_in("task", 1), {})


def average(
    against: tuple[Threat, ...],
    attack: Attack = Pgd(steps=10, step=0.25),
    norm_layers: BatchNormMode = "eval",
) -> Objective:
    return Average(against=against, attack=attack, norm_layers=norm_layers)


def worst(
    against: tuple[Threat, ...],
    attack: Attack = Pgd(steps=10, step=0.25),
    norm_layers: BatchNormMode = "eval",
) -> Objective:
    return Adversarial(threat=against, attack=WorstOf(attack=attack), norm_layers=norm_layers)  # pyright: ignore[reportArgumentType]


SEVERAL = pytest.mark.parametrize("build", [average, worst])


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
    objective = worst((LINF, L2, L1))
    crafted = objective.craft(model, given, ctx)
    assert crafted is not None
    model.eval()
    result = F.cross_entropy(model(crafted.x), given.y, reduction="none")
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
                        ctx.rng.fold_in("attack").fold_in("threat", number),
                    ).x
                ),
                given.y,
                reduction="none",
            )
            for number, threat in enumerate(objective.threats())
        ]
    )
    assert torch.allclose(result, alone.amax(0), atol=1e-9)
    assert len(set(alone.argmax(0).tolist())) > 1, "no choice is made here"
    assert crafted.loss is not None and torch.allclose(crafted.loss, result, atol=1e-9)
    assert len(crafted.x) == len(given)


def test_of_equal_candidates_the_first_is_kept():
    def flat(x: Tensor) -> Tensor:
        return torch.zeros(len(x), 3, dtype=x.dtype) + 0 * x.sum()

    given = batch()
    both = perturb(WorstOf(attack=Pgd(steps=1)), flat, given.x, given.y, AnyOf((LINF, L2)), Rng(0))
    first = perturb(Pgd(steps=1), flat, given.x, given.y, LINF, Rng(0).fold_in("threat", 0))
    assert torch.equal(both.x, first.x)


@SEVERAL
@pytest.mark.parametrize(("layers", "moves"), [("eval", False), ("train", True), ("train_frozen", False)])
def test_crafting_leaves_running_statistics_alone_unless_asked(
    build: Callable[..., Objective], layers: BatchNormMode, moves: bool
):
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    build((LINF, L2), attack=Pgd(steps=1), norm_layers=layers).craft(model, batch(), context())
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(moved) == moves
    assert all(module.training for module in model.modules())


@SEVERAL
@pytest.mark.parametrize("against", [(), (LINF,), (LINF, LINF), (LINF, L2, LINF)], ids=len)
def test_fewer_than_two_different_threats_are_refused(
    build: Callable[..., Objective], against: tuple[Threat, ...]
):
    with pytest.raises(ValidationError, match="two or more different threats, got"):
        build(against)


@SEVERAL
def test_an_attack_that_cannot_work_in_one_of_the_norms_is_refused(
    build: Callable[..., Objective], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Mim, "norms", frozenset({type(LINF.norm)}))
    with pytest.raises(ValidationError, match=r"got the threat L2:0\.5"):
        build((LINF, L2), attack=Mim())


def test_every_threat_is_trained_against():
    for objective in (average((LINF, L2)), worst((LINF, L2))):
        assert isinstance(objective, Objective) and objective.threats() == (LINF, L2)
    assert Average(against=(LINF, L2)).attack == Adversarial(threat=LINF).attack


def test_a_union_is_written_as_a_list_and_read_again():
    table = OneOf(lambda: OBJECTIVES)
    union = worst((LINF, L2, L1))
    written = table.encode(union)
    assert isinstance(written, dict) and written["threat"] == ["Linf:0.1", "L2:0.5", "L1:3"]
    assert table.decode(written) == union
    single = Adversarial(threat=LINF)
    written = table.encode(single)
    assert isinstance(written, dict) and written["threat"] == "Linf:0.1"
    assert table.decode(written) == single


def test_a_union_needs_an_attack_that_searches_unions():
    with pytest.raises(ValidationError, match=r"searches one ball, got the union Linf:0\.1 or L2:0\.5"):
        Adversarial(threat=AnyOf((LINF, L2)), attack=Pgd())
    with pytest.raises(ValidationError, match="unknown norm"):
        Adversarial(threat=["Linf:0.1", "Lx:2"], attack=WorstOf(attack=Pgd()))  # pyright: ignore[reportArgumentType]


def test_passes_grow_with_the_union():
    assert worst((LINF, L2)).passes() == Passes(22, 20) + Passes(1, 1)
    assert worst((LINF, L2, L1)).passes() == Passes(33, 30) + Passes(1, 1)
