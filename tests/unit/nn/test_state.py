"""Arithmetic on named tensors, against the same arithmetic written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allrounder.nn.state import (
    add_,
    all_finite,
    clone,
    copy_,
    distance,
    ema_update_,
    first_mismatch,
    interpolate,
    strip_prefix,
    weights_of,
    zeros_like,
)
from allrounder.types import Weights
from tests.support.networks import Tiny, same

SHARE = st.floats(0, 1)


def drawn(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        "matrix": torch.randn(3, 2, generator=generator, dtype=torch.float64),
        "scalar": torch.randn((), generator=generator, dtype=torch.float64),
        "counter": torch.tensor(seed),
    }


def test_weights_share_memory_with_the_network():
    model = Tiny()
    weights_of(model)["linear.bias"].fill_(7)
    assert torch.equal(model.linear.bias, torch.full((3,), 7.0))
    assert not weights_of(model)["linear.bias"].requires_grad


def test_a_clone_is_independent_and_exact():
    weights = drawn(1)
    kept = clone(weights)
    assert same(kept, weights)
    weights["matrix"].zero_()
    assert kept["matrix"].any()
    layout = clone({"x": torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last)})["x"]
    assert layout.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_averages_of_half_precision_weights_are_kept_in_single_precision(dtype: torch.dtype):
    weights = {"w": torch.ones(2, dtype=dtype)}
    assert clone(weights)["w"].dtype == zeros_like(weights)["w"].dtype == torch.float32
    average = clone(weights)
    ema_update_(average, {"w": torch.full((2,), 2, dtype=dtype)}, 0.999)
    assert torch.allclose(average["w"], torch.full((2,), 1.001), atol=1e-7, rtol=0)
    copy_(weights, average)
    assert weights["w"].dtype == dtype


@given(SHARE, SHARE)
def test_ema_update_is_one_step_of_a_moving_average(decay: float, share: float):
    target, source = drawn(1), drawn(2)
    ema_update_(target, source, decay, share)
    for name in ("matrix", "scalar"):
        expected = decay * drawn(1)[name] + (1 - decay) * share * drawn(2)[name]
        assert torch.allclose(target[name], expected, rtol=1e-12, atol=1e-12)


def test_counters_are_copied_by_ema_update_and_kept_by_add():
    target = drawn(1)
    ema_update_(target, drawn(2), 0.5)
    assert target["counter"] == 2
    add_(target, drawn(9))
    assert target["counter"] == 2


def test_adding_adds_and_zeros_add_nothing():
    target = drawn(1)
    add_(target, zeros_like(drawn(1)))
    assert same(target, drawn(1))
    add_(target, drawn(2))
    assert torch.equal(target["matrix"], drawn(1)["matrix"] + drawn(2)["matrix"])


def test_distance_is_euclidean_and_leaves_counters_out():
    a, b = drawn(1), drawn(2)
    flat = torch.cat([(a[name] - b[name]).flatten() for name in ("matrix", "scalar")])
    assert distance(a, b) == pytest.approx(float(flat.norm()), rel=1e-12)
    assert distance(a, {**a, "counter": torch.tensor(99)}) == 0


@pytest.mark.parametrize("change", [copy_, add_, lambda a, b: ema_update_(a, b, 0.5), distance])
@pytest.mark.parametrize(
    ("other", "named"),
    [({"w": torch.ones(1)}, "w"), ({"w": torch.ones(4), "v": torch.ones(4)}, "v"), ({}, "w")],
)
def test_weights_of_another_network_are_refused_and_change_nothing(change, other: Weights, named: str):
    target = {"w": torch.zeros(4)}
    with pytest.raises(ValueError, match=f"different networks: {named} is missing or differs in shape"):
        change(target, other)
    assert torch.equal(target["w"], torch.zeros(4))


def test_a_mismatch_is_a_missing_name_or_another_shape():
    a = {"x": torch.zeros(2), "y": torch.zeros(3)}
    assert first_mismatch(a, {"x": torch.ones(2), "y": torch.ones(3)}) is None
    assert first_mismatch(a, {"x": torch.ones(2)}) == "y"
    assert first_mismatch(a, {"x": torch.ones(1), "y": torch.ones(3)}) == "x"


def test_strip_prefix_selects_and_renames():
    result = strip_prefix("a.", {"a.x": torch.tensor(1), "b.x": torch.tensor(2), "a.a.x": torch.tensor(3)})
    assert {name: int(tensor) for name, tensor in result.items()} == {"x": 1, "a.x": 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_nonfinite_number_is_detected(bad: float):
    weights = drawn(1)
    assert all_finite(weights)
    weights["matrix"][2, 1] = bad
    assert not all_finite(weights)


def test_large_numbers_counters_and_empty_tensors_are_finite():
    largest = {"a": torch.full((9,), torch.finfo(torch.float32).max), "b": torch.ones(1, dtype=torch.float64)}
    assert all_finite({**largest, "n": torch.tensor(3), "none": torch.empty(0)})
    assert all_finite({})


def test_tied_weights_stay_tied():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    live = weights_of(nn.Sequential(first, second))
    assert len(live) == 2
    copy_(live, {name: torch.ones(2, 2) for name in live})
    assert second.weight is first.weight
    assert torch.equal(first.weight, torch.ones(2, 2))


def test_interpolation_moves_floats_and_copies_counters():
    first = {"w": torch.tensor([0.0, 4.0]), "count": torch.tensor(3)}
    second = {"w": torch.tensor([1.0, 0.0]), "count": torch.tensor(8)}
    moved = interpolate(0.25, first, second)
    assert moved["w"].tolist() == [0.25, 3.0] and moved["count"] == 8
    assert interpolate(1.0, first, second)["w"] is second["w"], "no arithmetic, so every bit is kept"
    half = interpolate(0.5, {"w": torch.tensor([1.0], dtype=torch.bfloat16)}, {"w": torch.tensor([2.0])})
    assert half["w"].dtype == torch.float32 and half["w"].tolist() == [1.5]
