from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from allrounder.inference.winograd import (
    WinogradConv,
    pays_off,
    suits_winograd,
    transform_filters,
    winograd_conv,
)
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
    quick, x, towards = WinogradConv(copy.deepcopy(plain)), images(2, 128, 8, 12), images(2, 130, 8, 12)
    assert pays_off(8, 12, 128, 130)
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


@pytest.mark.parametrize("part", [1, 7, 10**6])
def test_the_number_of_tiles_at_once_changes_no_value(part: int, monkeypatch: pytest.MonkeyPatch):
    x, weight = images(5, 3, 9, 6), Rng(1).normal(torch.empty(5, 3, 3, 3, dtype=torch.float64))
    expected = nn.functional.conv2d(x, weight, padding=1)
    monkeypatch.setattr("allrounder.inference.winograd.TILES_AT_ONCE", part)
    torch.testing.assert_close(winograd_conv(x, transform_filters(weight)), expected, rtol=0, atol=1e-12)


def test_a_bias_is_added_to_every_pixel():
    x, weight = images(2, 3, 6, 5), Rng(1).normal(torch.empty(5, 3, 3, 3, dtype=torch.float64))
    bias = Rng(2).normal(torch.empty(5, dtype=torch.float64))
    got = winograd_conv(x, transform_filters(weight), bias)
    expected = nn.functional.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_new_filters_are_written_to_the_same_memory():
    quick, x = (
        WinogradConv(nn.Conv2d(128, 128, 3, padding=1).requires_grad_(False)),
        images(1, 128, 8, 8).float(),
    )
    before, places = quick(x), [filters.data_ptr() for filters in quick.transformed_filters()]
    quick.weight.mul_(2)
    assert torch.equal(quick(x), before), "filters are transformed once"
    quick.refresh_()
    assert quick.bias is not None
    bias = quick.bias[:, None, None]
    torch.testing.assert_close(quick(x) - bias, 2 * (before - bias), rtol=1e-5, atol=1e-5)
    assert [filters.data_ptr() for filters in quick.transformed_filters()] == places


@pytest.mark.parametrize(
    ("size", "pays"),
    [
        ((32, 32, 64, 64), True),
        ((16, 16, 128, 128), True),
        ((4, 4, 512, 512), True),
        ((4, 4, 64, 64), False),  # too little work
        ((14, 14, 64, 64), False),  # a quarter of the last tiles is padding
        ((5, 5, 256, 256), False),
        ((32, 32, 32, 32), False),
    ],
)
def test_the_choice_depends_on_the_shape(size: tuple[int, int, int, int], pays: bool):
    assert pays_off(*size) is pays


def test_a_layer_is_plain_for_sizes_at_which_it_does_not_pay_off(monkeypatch: pytest.MonkeyPatch):
    plain, x = nn.Conv2d(128, 128, 3, padding=1).requires_grad_(False), images(1, 128, 5, 5).float()
    assert torch.equal(WinogradConv(plain)(x), plain(x))
