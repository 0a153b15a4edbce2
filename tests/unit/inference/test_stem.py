from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from allrounder.inference.fast_conv import StemConv, suits_stem
from allrounder.rng import Rng


@given(
    channels=st.integers(1, 3),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    bias=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_plain_layer(
    channels: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    bias: bool,
):
    with Rng(0).seed_global():
        plain = nn.Conv2d(channels, 4, kernel, stride, padding, bias=bias).double().requires_grad_(False)
    assert suits_stem(plain)
    x, result = (
        Rng(1).normal(torch.empty(3, channels, *size, dtype=torch.float64)),
        list[tuple[Tensor, ...]](),
    )
    for layer in (plain, StemConv(copy.deepcopy(plain))):
        asked = x.clone().requires_grad_()
        y = layer(asked)
        towards = Rng(2).normal(torch.empty_like(y, requires_grad=False))
        result.append((y.detach(), torch.autograd.grad((y * towards).sum(), asked)[0]))
    assert torch.equal(result[0][0], result[1][0])
    torch.testing.assert_close(result[1][1], result[0][1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3),
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 8, 3, dilation=2),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
        StemConv(nn.Conv2d(3, 8, 3)),
    ],
)
def test_other_convolutions_are_left_alone(layer: nn.Conv2d):
    assert not suits_stem(layer)
