"""Batch-norm statistics measured again, against the definition."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.state import clone, copy_, weights_of
from tests.support.networks import Tiny, blobs, same

BATCHES = [blobs(48).train.fetch(rows) for rows in torch.arange(48).split(20)]


def trained(model: nn.Module) -> nn.Module:
    """Some statistics that are not those of the batches."""
    model.train()
    for number in range(3):
        model(torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(number)))
    return model


def literal(model: Tiny, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean over batches of each channel's mean and unbiased variance."""
    means, variances = [], []
    for x in batches:
        z = model.conv(x).transpose(0, 1).flatten(1)
        means.append(z.mean(1))
        variances.append(z.var(1, unbiased=True))
    return torch.stack(means).mean(0), torch.stack(variances).mean(0)


def test_statistics_are_the_plain_average_over_batches():
    model = Tiny()
    trained(model)
    recalibrate_(model, BATCHES)
    mean, variance = literal(model, BATCHES)
    assert model.bn.running_mean is not None and model.bn.running_var is not None
    assert torch.allclose(model.bn.running_mean, mean, atol=1e-6)
    assert torch.allclose(model.bn.running_var, variance, atol=1e-6)


def test_nothing_but_the_statistics_moves():
    model = Tiny()
    trained(model)
    model.bn.eval()
    before, modes = clone(weights_of(model)), [module.training for module in model.modules()]
    recalibrate_(model, BATCHES)
    moved = {name for name, tensor in weights_of(model).items() if not torch.equal(tensor, before[name])}
    assert moved == {"bn.running_mean", "bn.running_var"}
    assert model.bn.num_batches_tracked == 3, "the counter is restored"
    assert model.bn.momentum == 0.1
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_statistics_do_not_depend_on_those_before():
    one, two = Tiny(), Tiny()
    copy_(weights_of(two), weights_of(one))
    trained(two)
    for model in (one, two):
        recalibrate_(model, BATCHES)
    assert torch.equal(weights_of(one)["bn.running_mean"], weights_of(two)["bn.running_mean"])
    assert torch.equal(weights_of(one)["bn.running_var"], weights_of(two)["bn.running_var"])


def test_dropout_is_off_while_statistics_are_measured():
    class Dropped(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Dropout(0.5), nn.BatchNorm2d(1))

    model = Dropped().train()
    recalibrate_(model, BATCHES)
    mean = weights_of(model)["1.running_mean"]
    assert torch.allclose(mean, torch.stack([x.mean() for x in BATCHES]).mean().view(1), atol=1e-6)


def test_networks_without_statistics_are_left_alone():
    for model in (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        nn.BatchNorm2d(1, track_running_stats=False),
    ):
        before = clone(weights_of(model))
        recalibrate_(model, BATCHES)
        assert same(dict(weights_of(model)), before)
