from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from allrounder.folding import frozen
from allrounder.models.resnet import ResNet18
from allrounder.rng import Draws
from allrounder.winograd import Winograd, convolve, filters, quickened, suits


def images(n: int, c: int, h: int, w: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return Draws(0).normal(torch.empty(n, c, h, w, dtype=dtype))


def network() -> nn.Module:
    """A block of 128 channels and one of fewer, with batch-norm that matters."""
    with Draws(0).ambient():
        layers = nn.Sequential(
            *(nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)),
        )
        bn = layers[3]
        assert isinstance(bn, nn.BatchNorm2d)
        for tensor in (bn.running_mean, bn.running_var, bn.weight, bn.bias):
            assert tensor is not None
            tensor.data.uniform_(0.5, 1.5)
    return layers.eval().requires_grad_(False)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (6, 6), (7, 9), (8, 8)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_the_convolution(size: tuple[int, int], layout: torch.memory_format):
    x = images(2, 3, *size).contiguous(memory_format=layout)
    weight = Draws(1).normal(torch.empty(5, 3, 3, 3, dtype=torch.float64))
    expected = nn.functional.conv2d(x, weight, padding=1)
    torch.testing.assert_close(convolve(x, filters(weight)), expected, rtol=0, atol=1e-12)


def test_values_and_gradients_of_a_layer_are_those_of_the_plain_one():
    plain = nn.Conv2d(128, 130, 3, padding=1).double().requires_grad_(False)
    quick, x, towards = Winograd(copy.deepcopy(plain)), images(2, 128, 6, 5), images(2, 130, 6, 5)
    found: list[tuple[Tensor, Tensor]] = []
    for layer in (plain, quick):
        asked = x.clone().requires_grad_()
        y = layer(asked)
        found.append((y.detach(), torch.autograd.grad((y * towards).sum(), asked)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 128, 3, padding=1),
        nn.Conv2d(128, 1024, 3, padding=1),
        nn.Conv2d(128, 128, 3),
        nn.Conv2d(128, 128, 3, padding=1, stride=2),
        nn.Conv2d(128, 128, 5, padding=1),
        nn.Conv2d(128, 128, 3, padding=1, groups=2),
        nn.Conv2d(128, 128, 3, padding=1, dilation=2),
        nn.Conv2d(128, 128, 3, padding=1, padding_mode="circular"),
        Winograd(nn.Conv2d(128, 128, 3, padding=1)),
    ],
)
def test_other_convolutions_are_left_alone(layer: nn.Conv2d):
    assert not suits(layer)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_a_folded_network_is_copied_with_quick_layers_and_answers_the_same(dtype: torch.dtype, close: float):
    model, x = network().to(dtype), Draws(0).uniform(torch.empty(4, 3, 8, 8, dtype=dtype))
    folded = frozen(model, x)
    assert folded is not None
    before = folded(x)
    quick = quickened(folded, x)
    kinds = [type(layer) for layer in quick.network.modules()]
    assert kinds.count(Winograd) == 1 and Winograd not in map(type, folded.network.modules())
    torch.testing.assert_close(quick(x), model(x), rtol=close, atol=close)
    assert torch.equal(folded(x), before)


def test_without_such_layers_or_agreement_nothing_changes(monkeypatch: pytest.MonkeyPatch):
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    small = frozen(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten()), x)
    assert small is not None and quickened(small, x) is small
    folded = frozen(network(), x)
    assert folded is not None
    monkeypatch.setattr("allrounder.winograd.convolve", lambda x, by: convolve(x, 1.1 * by))
    assert quickened(folded, x) is folded


def test_neither_place_nor_neighbours_change_a_bit():
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with Draws(0).ambient():
        folded = frozen(ResNet18(width=32).build(10, (3, 32, 32)), x)
    assert folded is not None
    quick = quickened(folded, x)
    assert Winograd in map(type, quick.network.modules())

    def answers(x: Tensor) -> tuple[Tensor, Tensor]:
        asked = x.clone().requires_grad_()
        logits = quick(asked)
        return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), asked)[0]

    whole = answers(x)
    for seed in range(3):
        order = Draws(seed).permutation(16)
        others = torch.where(torch.arange(16)[:, None, None, None] % 2 == 0, x[order], 1 - x[order])
        for shown, rows in ((x[order], torch.arange(16)), (others, torch.arange(0, 16, 2))):
            for one, other in zip(whole, answers(shown), strict=True):
                assert torch.equal(other[rows], one[order][rows])
