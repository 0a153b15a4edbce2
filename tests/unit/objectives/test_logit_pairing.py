"""RAMP's loss: two attacks, the harder image, and the pairing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from allrounder.attacks import ApgdTrain, perturb
from allrounder.attacks.base import AttackResult
from allrounder.config.time import Clock
from allrounder.objectives import LogitPairing
from allrounder.objectives.logit_pairing import pairing_loss
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Passes
from tests.reference import ramp as reference
from tests.support.networks import Tiny, blobs, same

LINF, L2, L1 = (Threat.parse(text) for text in ("Linf:0.1", "L2:0.6", "L1:2"))
DATA = blobs()


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().double()


def batch() -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).double(), DATA.train.labels[index], index)


CTX = Context(1, Clock(10, 4), Rng(3), {})


def test_the_three_images_are_target_source_and_the_harder_of_the_two():
    model, given = network(), batch()
    for parameter in model.parameters():
        parameter.data.mul_(2)
    crafted = LogitPairing(source=LINF, target=L1).craft(model, given, CTX)
    target, source, harder = crafted.x.chunk(3)
    t, s = (perturb(ApgdTrain(), model, given.x, given.y, one, Rng(0)) for one in (L1, LINF))
    assert torch.equal(target, t.x) and torch.equal(source, s.x)
    assert t.loss is not None and s.loss is not None
    rows = t.loss > s.loss
    assert rows.any() and not rows.all()
    assert torch.equal(harder[rows], t.x[rows]) and torch.equal(harder[~rows], s.x[~rows])


def test_ties_go_to_the_target(monkeypatch: pytest.MonkeyPatch):
    def equally(attack: Any, model: Any, x: Tensor, y: Tensor, threat: Threat, *more: Any, **named: Any):
        moved = (x + 0.01 * threat.eps).clamp(0, 1)
        return AttackResult(x=moved, passes=Passes(), loss=torch.ones(len(x), dtype=x.dtype))

    monkeypatch.setattr("allrounder.objectives.base.perturb", equally)
    crafted = LogitPairing(source=LINF, target=L1).craft(network(), batch(), CTX)
    target, source, harder = crafted.x.chunk(3)
    assert torch.equal(harder, target) and not torch.equal(target, source)


@pytest.mark.parametrize(
    "fields", [{}, {"lam": 0.0}, {"variant": "trades", "lam": 2.0, "beta": 6.0}], ids=str
)
def test_the_loss_equals_the_reference(fields: dict[str, Any]):
    objective, model, given = LogitPairing(source=LINF, target=L2, **fields), network(), batch()
    crafted = objective.craft(model, given, CTX)
    result = objective.loss(model.train(), given, crafted, CTX)
    plain = network().train()
    z_t, z_s, z_b = (plain(x).tolist() for x in crafted.x.chunk(3))
    y = given.y.tolist()
    if objective.variant == "plain":
        expected = reference.plain_loss(z_t, z_s, z_b, y, objective.lam)
    else:
        z = plain(given.x).tolist()
        expected = reference.trades_loss(z, z_t, z_s, z_b, y, objective.lam, objective.beta)
    assert float(result.total.detach()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("variant", "count"), [("plain", 3), ("trades", 4)])
def test_every_training_pass_moves_the_running_statistics_and_crafting_does_not(variant: Any, count: int):
    objective, model, given = (
        LogitPairing(source=LINF, target=L2, variant=variant),
        network().train(),
        batch(),
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    crafted = objective.craft(model, given, CTX)
    assert same(before, model.state_dict())
    objective.loss(model, given, crafted, CTX)
    assert int(model.bn.num_batches_tracked) == count  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    assert objective.passes() == Passes(22 + count, 20 + count)


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def test_the_pairing_counts_images_that_the_source_gets_right_and_moves_both_sides():
    source, target = logits([2, 0, 0], [0, 2, 0], [0, 0, 2]), logits([0, 1, 0], [1, 0, 0], [0, 1, 0])
    y = torch.tensor([0, 1, 0])
    result = pairing_loss(source, target, y)
    rows = [reference.divergence(source[i].tolist(), target[i].tolist()) for i in (0, 1)]
    assert float(result.detach()) == pytest.approx(sum(rows) / 2)
    result.backward()
    for side in (source, target):
        assert side.grad is not None
        assert side.grad[:2].any(dim=1).all() and not side.grad[2].any()


def test_the_pairing_is_zero_where_the_source_gets_nothing_right_or_agrees():
    source, y = logits([2, 0, 0], [0, 2, 0]), torch.tensor([1, 2])
    nothing = pairing_loss(source, logits([0, 1, 0], [1, 0, 0]), y)
    nothing.backward()
    assert float(nothing.detach()) == 0 and source.grad is not None and not source.grad.any()
    assert float(pairing_loss(source, source, torch.tensor([0, 1])).detach()) == 0


def test_source_and_target_must_differ():
    with pytest.raises(
        ValidationError, match=r"a threat other than the source, got Linf:0\.1 twice; change one of them"
    ):
        LogitPairing(source=LINF, target=LINF)
    assert LogitPairing(source=LINF, target=L2).threats() == (LINF, L2)
