from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.config.fields import OneOf, adapter
from allrounder.optim.optimizers import OPTIMIZERS, Adam, AdamW, Optimizer, Sgd


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (4,))]


def steps(optimizer: torch.optim.Optimizer, given: list[nn.Parameter], lr: float, count: int = 3) -> None:
    """Descend on the sum of fourth powers."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(count):
        optimizer.zero_grad()
        torch.stack([parameter.pow(4).sum() for parameter in given]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("value", "plain", "settings"),
    [
        (Sgd(), torch.optim.SGD, {"momentum": 0.9}),
        (
            Sgd(momentum=0.5, weight_decay=0.1, nesterov=True),
            torch.optim.SGD,
            {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True},
        ),
        (Sgd(momentum=0.0), torch.optim.SGD, {}),
        (Adam(), torch.optim.Adam, {}),
        (
            Adam(betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
            torch.optim.Adam,
            {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
        ),
        (AdamW(), torch.optim.AdamW, {}),
        (AdamW(weight_decay=0.3), torch.optim.AdamW, {"weight_decay": 0.3}),
    ],
    ids=str,
)
def test_optimisers_equal_those_of_torch(value: Optimizer, plain: Any, settings: dict[str, Any]):
    mine, theirs = parameters(), parameters()
    steps(value.build(mine), mine, lr=0.05)
    steps(plain(theirs, lr=0.05, foreach=False, **settings), theirs, lr=0.05)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimiser_starts_with_learning_rate_zero_and_descends(kind: str):
    value: Optimizer = adapter(OPTIMIZERS[kind]).validate_python({})
    given = parameters()
    optimizer = value.build(iter(given))  # learners hand over a generator
    before = [parameter.detach().clone() for parameter in given]
    steps(optimizer, given, lr=0.0, count=1)
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))
    steps(optimizer, given, lr=0.01)
    moved = sum(float((a.abs() - b.detach().abs()).sum()) for a, b in zip(before, given, strict=True))
    assert moved > 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimiser_round_trips_through_a_table(kind: str):
    value = adapter(OPTIMIZERS[kind]).validate_python({"weight_decay": 0.25})
    table = OneOf(lambda: OPTIMIZERS)
    assert table.decode(table.encode(value)) == value
    encoded: Any = table.encode(value)
    assert (encoded["kind"], encoded["weight_decay"]) == (kind, 0.25)
    assert encoded.keys() - {"kind"} == {field.name for field in fields(value)}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Sgd(momentum=2.0), "momentum"),
        (lambda: Sgd(momentum=-0.1), "momentum"),
        (lambda: Sgd(weight_decay=-1.0), "weight_decay"),
        (lambda: Sgd(momentum=0.0, nesterov=True), "nesterov"),
        (lambda: Adam(betas=(1.0, 0.9)), "betas"),
        (lambda: Adam(eps=0.0), "eps"),
        (lambda: AdamW(weight_decay=-1.0), "weight_decay"),
    ],
)
def test_settings_that_torch_refuses_are_refused(make: Any, field: str):
    with pytest.raises(ValidationError, match=field):
        make()


def test_decay_on_weights_excludes_biases_and_scales():
    mine, theirs, bare = parameters(), parameters(), parameters()
    steps(Sgd(weight_decay=0.3, decay_on="weights").build(iter(mine)), mine, lr=0.05)
    steps(Sgd(weight_decay=0.3).build(theirs), theirs, lr=0.05)
    steps(Sgd().build(bare), bare, lr=0.05)
    assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], bare[1])
    assert not torch.equal(mine[0], bare[0]) and not torch.equal(mine[1], theirs[1])


@pytest.mark.parametrize("dims", [0, 1], ids=["weights alone", "biases alone"])
def test_decay_on_weights_needs_no_parameters_of_both_kinds(dims: int):
    given = [parameters()[dims]]
    assert len(Sgd(decay_on="weights").build(given).param_groups) == 1


def test_the_choice_of_decay_is_read_back():
    table = OneOf(lambda: OPTIMIZERS)
    assert table.decode({"kind": "sgd"}) == Sgd(decay_on="all")
    assert table.decode(table.encode(Sgd(decay_on="weights"))) == Sgd(decay_on="weights")
