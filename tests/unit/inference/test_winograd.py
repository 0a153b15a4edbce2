from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from allrounder.inference.winograd import G, Matrix, PlainFilters, transform_taps, winograd_conv
from allrounder.inference.winograd_layer import MKL_COSTS, ONEDNN_COSTS, Costs, WinogradConv, suits_winograd
from allrounder.inference.winograd_onednn import (
    PackedFilters,
    count_packed_tiles,
    has_access,
    is_onednn_faster,
    pack_taps,
)
from allrounder.rng import Rng


def images(n: int, c: int, h: int, w: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return Rng(0).normal(torch.empty(n, c, h, w, dtype=dtype))


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def in_onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether layers compute their products in oneDNN, whatever the machine is."""
    if request.param and not has_access():
        pytest.skip("this version of torch gives no access to oneDNN")
    monkeypatch.setattr("allrounder.inference.winograd_layer.is_onednn_faster", lambda: request.param)
    return request.param


def transform_filters(weight: Tensor) -> Tensor:
    filters = weight.new_empty(36, weight.shape[1], weight.shape[0])
    transform_taps(weight.permute(3, 2, 1, 0), G, filters)
    return filters


def wide_layer(inputs: int = 128, outputs: int = 128) -> nn.Conv2d:
    with Rng(3).seed_global():
        return nn.Conv2d(inputs, outputs, 3, padding=1).requires_grad_(False)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (6, 6), (7, 9), (8, 8)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_the_convolution(size: tuple[int, int], layout: torch.memory_format):
    x = images(2, 3, *size).contiguous(memory_format=layout)
    weight = Rng(1).normal(torch.empty(5, 3, 3, 3, dtype=torch.float64))
    expected = nn.functional.conv2d(x, weight, padding=1)
    torch.testing.assert_close(winograd_conv(x, transform_filters(weight)), expected, rtol=0, atol=1e-12)


def test_values_and_gradients_of_a_layer_are_those_of_the_plain_one():
    plain = wide_layer(outputs=130).double()
    quick, x, towards = WinogradConv(copy.deepcopy(plain)), images(2, 128, 8, 12), images(2, 130, 8, 12)
    assert quick.pays_off(8, 12)
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


@pytest.mark.parametrize("size", [(8, 8), (16, 12), (15, 16)])
@pytest.mark.parametrize("n", [1, 5, 11])
def test_products_in_both_libraries_agree(size: tuple[int, int], n: int, in_onednn: bool):
    layer = wide_layer(outputs=144)
    quick, x, g = WinogradConv(layer), images(n, 128, *size).float(), images(n, 144, *size).float()
    assert isinstance(quick.filters[0], PackedFilters if in_onednn else PlainFilters)
    leaf = x.clone().requires_grad_()
    expected = layer(leaf)
    (gradient,) = torch.autograd.grad(expected, leaf, g)
    torch.testing.assert_close(quick.convolve(x), expected.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(quick.input_grad(g), gradient, rtol=0, atol=1e-4)


def test_an_image_has_the_same_bits_at_every_position(in_onednn: bool):
    """Also in a last part with fewer images than the others; eight images of 16x16 are a part."""
    quick, x = WinogradConv(wide_layer()), images(19, 128, 16, 16).float()
    whole = quick.convolve(x)
    for shift in (5, 16):
        assert torch.equal(quick.convolve(x.roll(shift, 0)), whole.roll(shift, 0))
    if in_onednn:
        assert torch.equal(quick.convolve(x[:11]), whole[:11])


def test_filters_are_transformed_once_per_weight(in_onednn: bool):
    quick, x = WinogradConv(wide_layer()), images(1, 128, 8, 8).float()
    before = quick(x)
    quick.weight.mul_(2)
    assert torch.equal(quick(x), before)
    quick.refresh_()
    assert quick.bias is not None
    bias = quick.bias[:, None, None]
    torch.testing.assert_close(quick(x) - bias, 2 * (before - bias), rtol=1e-5, atol=1e-5)


def test_new_filters_are_written_to_the_same_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allrounder.inference.winograd_layer.is_onednn_faster", lambda: False)
    quick, x = WinogradConv(wide_layer()), images(1, 128, 8, 8).float()
    (filters, _), places = quick.filters, list[int]()
    assert isinstance(filters, PlainFilters)
    for _ in range(2):
        quick.refresh_()
        quick(x)
        assert filters.filters is not None
        places.append(filters.filters.data_ptr())
    assert places[0] == places[1]


def test_filters_are_packed_again_only_for_much_smaller_batches(monkeypatch: pytest.MonkeyPatch):
    if not has_access():
        pytest.skip("this version of torch gives no access to oneDNN")
    monkeypatch.setattr("allrounder.inference.winograd_layer.is_onednn_faster", lambda: True)
    packed: list[int] = []

    def pack(taps: Tensor, by: Matrix, tiles: int) -> Tensor:
        packed.append(tiles)
        return pack_taps(taps, by, tiles)

    monkeypatch.setattr("allrounder.inference.winograd_onednn.pack_taps", pack)
    quick = WinogradConv(wide_layer())
    for n in range(40, 6, -1):  # 32 images of 8x8 are a part, or 8 if fewer are added then
        x = images(n, 128, 8, 8).float()
        expected = nn.functional.conv2d(x, quick.weight, quick.bias, padding=1)
        torch.testing.assert_close(quick.convolve(x), expected, rtol=0, atol=1e-4)
    assert packed == [32, 128, 32, 64, 32]


@pytest.mark.parametrize(
    ("n", "side", "part"),
    [
        (64, 8, 32),
        (33, 8, 8),
        (65, 8, 8),
        (129, 8, 8),
        (17, 8, 8),
        (9, 8, 16),
        (9, 16, 2),
        (128, 4, 128),
        (65, 4, 32),
        (64, 4, 64),
        (3, 32, 1),
        (1, 4, 1),
        (0, 8, 1),
    ],
)
def test_parts_fill_up_few_images(n: int, side: int, part: int):
    tiles = (side // 4) ** 2
    assert count_packed_tiles(torch.Size((n, 128, side, side))) == (part, part * tiles)
    if n.bit_count() == 1:
        assert part == min(n, max(1, 128 // tiles)), "nothing is filled up"


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_layer_can_be_copied_after_a_pass(duplicate: Callable[[nn.Module], nn.Module], in_onednn: bool):
    quick, x = WinogradConv(wide_layer()), images(1, 128, 8, 8).float()
    y = quick(x)
    assert torch.equal(duplicate(quick)(x), y)


@pytest.mark.parametrize(
    ("capability", "processor", "is_faster"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),  # MKL uses AVX512 there
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_the_library_depends_on_the_processor(
    capability: str, processor: str, is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    info = tmp_path / "cpuinfo"
    info.write_text(f"vendor_id\t: {processor}\n")
    monkeypatch.setattr("allrounder.inference.winograd_onednn.CPU_INFO", info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_onednn_faster.__wrapped__() is (is_faster and has_access())


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_processor_that_cannot_be_read_keeps_the_usual_library(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("allrounder.inference.winograd_onednn.CPU_INFO", tmp_path / name)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert is_onednn_faster.__wrapped__() is False


@pytest.mark.parametrize("costs", [MKL_COSTS, ONEDNN_COSTS])
@pytest.mark.parametrize(
    ("size", "pays"),
    [
        ((32, 32, 64, 64), None),  # only if products are much cheaper than in a plain convolution
        ((16, 16, 128, 128), True),
        ((4, 4, 512, 512), True),
        ((4, 4, 64, 64), False),  # too little work
        ((14, 14, 64, 64), False),  # a quarter of the last tiles is padding
        ((5, 5, 256, 256), False),
    ],
)
def test_the_choice_depends_on_the_shape(size: tuple[int, int, int, int], pays: bool | None, costs: Costs):
    layer = WinogradConv(nn.Conv2d(*size[2:], 3, padding=1, device="meta"))
    layer.costs = costs
    assert layer.pays_off(*size[:2]) is (costs is MKL_COSTS if pays is None else pays)


def test_a_layer_is_plain_for_sizes_at_which_it_does_not_pay_off():
    plain, x = wide_layer(), images(1, 128, 5, 5).float()
    assert torch.equal(WinogradConv(plain)(x), plain(x))
