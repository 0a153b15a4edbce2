from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from allrounder.inference.winograd import WinogradConv, pays_off, suits_winograd, transform_filters, winograd_conv
from allrounder.rng import Rng


def images(n: int, c: int, h: int, w: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return Rng(0).normal(torch.empty(n, c, h, w, dtype=dtype))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (6, 6), (7, 9), (8, 8)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_the_convolution(size: tuple[int, int], layout: torch.memory_format):
    x = images(2, 3, *size).contiguous(memory_format=layout)
    weight = Rng(1).normal(torch.empty(5, 3, 3, 3, dtype=torch.float64))
    expected = nn.functional.conv2d(x, weight, padding=1)
    torch.testing.assert_close(winograd_conv(x, transform_filters(weight)), expected, rtol=0, atol=1e-12)


def test_values_and_gradients_of_a_layer_are_those_of_the_plain_one():
    plain = nn.Conv2d(128, 130, 3, padding=1).double().requires_grad_(False)
    quick, x, towards = WinogradConv(copy.deepcopy(plain)), images(2, 128, 6, 5), images(2, 130, 6, 5)
    result: list[tuple[Tensor, Tensor]] = []
    for layer in (plain, quick):
        asked = x.clone().requires_grad_()
        y = layer(asked)
        result.append((y.detach(), torch.autograd.grad((y * towards).sum(), asked)[0]))
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(48, 128, 3, padding=1),
        nn.Conv2d(128, 1024, 3, padding=1),
        nn.Conv2d(128, 128, 3),
        nn.Conv2d(128, 128, 3, padding=1, stride=2),
        nn.Conv2d(128, 128, 5, padding=1),
        nn.Conv2d(128, 128, 3, padding=1, groups=2),
        nn.Conv2d(128, 128, 3, padding=1, dilation=2),
        nn.Conv2d(128, 128, 3, padding=1, padding_mode="circular"),
        WinogradConv(nn.Conv2d(128, 128, 3, padding=1)),
    ],
)
def test_other_convolutions_are_left_alone(layer: nn.Conv2d):
    assert not suits_winograd(layer)
