from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.attacks.fab import displace, plane_distance
from allrounder.threats.norms import L1, L2, Linf, Norm
from tests.reference import fab as twin

THREE = pytest.mark.parametrize("norm", [Linf(), L2(), L1()], ids=str)
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
SEEDS, NEEDS = st.integers(0, 10_000), st.sampled_from([0.0, 1e-6, 0.01, 0.3, 0.9, 0.999, 1.5, 30.0])


def case(seed, need, *, n=4, shape=(3, 4, 4), dtype=torch.float64):
    """Images with pixels on the walls, planes with some weights zero or equal, and a c that takes the given
    share of all the room."""
    g = torch.Generator().manual_seed(seed)
    x = (1.4 * torch.rand(n, *shape, generator=g, dtype=torch.float64) - 0.2).clamp(0, 1)
    w = torch.randn(n, *shape, generator=g, dtype=torch.float64)
    w = torch.where(torch.rand(w.shape, generator=g) < 0.2, w.round(), w)
    sign = 2.0 * torch.randint(0, 2, (n,), generator=g) - 1
    reach = (torch.where(w * sign[:, None, None, None] > 0, x, 1 - x) * w.abs()).flatten(1).sum(1)
    return x.to(dtype), w.to(dtype), (need * sign * reach).to(dtype)


def gained(w, d):
    return (w * d).flatten(1).sum(1)


@THREE
@TYPES
@given(seed=SEEDS, need=NEEDS)
def test_the_plane_is_reached_inside_the_box_or_all_room_is_used(norm, dtype, seed, need):
    x, w, c = case(seed, need, dtype=dtype)
    d = displace(x, w, c, norm)
    tiny = 64 * torch.finfo(dtype).eps
    assert d.dtype == dtype and d.shape == x.shape
    assert (x + d).min() >= -tiny and (x + d).max() <= 1 + tiny
    assert (d * w * c[:, None, None, None] <= 0).all(), "every coordinate moves towards the plane"
    expected = -c if need < 1 else -c / need
    torch.testing.assert_close(gained(w, d), expected, rtol=tiny, atol=tiny)


@THREE
@given(seed=SEEDS, need=NEEDS, size=st.integers(1, 6))
def test_no_displacement_is_shorter(norm, seed, need, size):
    x, w, c = case(seed, need, n=2, shape=(1, 1, size))
    if need >= 1:
        return
    result = norm.length(displace(x, w, c, norm))
    rows = zip(x.flatten(1).numpy(), w.flatten(1).numpy(), c.tolist(), strict=True)
    best = [twin.shortest(norm.name, *row) for row in rows]
    np.testing.assert_allclose(result.numpy(), best, rtol=1e-9, atol=1e-11)


@THREE
@given(seed=SEEDS, need=NEEDS)
def test_displacements_equal_their_twin(norm, seed, need):
    x, w, c = case(seed, need)
    d = displace(x, w, c, norm)
    for i in range(len(x)):
        expected = twin.displace(norm.name, x[i].numpy(), w[i].numpy(), float(c[i]))
        if norm == L1():
            # Coordinates of equal weight may share the way as they like.
            assert abs(np.abs(expected).sum() - float(d[i].abs().sum())) <= 1e-10
        else:
            np.testing.assert_allclose(d[i].numpy(), expected, rtol=0, atol=1e-10)


@given(seed=SEEDS, need=NEEDS)
def test_an_l2_displacement_is_a_projection(seed, need):
    # d is the shortest exactly if no other way z to the plane inside the box has a product d.(z - d) < 0.
    x, w, c = case(seed, min(need, 0.9))
    d = displace(x, w, c, L2())
    for other in range(5):
        z = torch.randn(x.shape, generator=torch.Generator().manual_seed(other), dtype=x.dtype)
        inside = ((x + 1e-3 * z).clamp(0, 1) - x) * 1e-3
        nearly = displace((x + inside).clamp(0, 1), w, c + gained(w, inside), L2()) + inside
        assert (gained(d, nearly - d) >= -1e-9).all()


@THREE
def test_large_images_need_many_kinks_and_are_met(norm):
    for need in (1e-4, 0.05, 0.5, 0.99, 1 - 1e-6):
        for dtype, rtol in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
            x, w, c = case(3, need, n=3, shape=(3, 32, 32), dtype=dtype)
            d = displace(x, w, c, norm)
            torch.testing.assert_close(gained(w.double(), d.double()), -c.double(), rtol=rtol, atol=0)
            if need > 0.99:  # where the length is steep in c
                continue
            exact = displace(x.double(), w.double(), c.double(), norm)
            torch.testing.assert_close(norm.length(d), norm.length(exact).to(dtype), rtol=1e-4, atol=1e-6)


@THREE
def test_scattered_weights_and_rooms_do_not_stop_the_climb(norm):
    # Kinks and weights over many orders of magnitude, each smaller than the one before.
    k = torch.arange(48, dtype=torch.float64)
    x, w = (1 - 0.5**k).view(1, 3, 4, 4), (0.6**k).view(1, 3, 4, 4)
    reach = gained(w, 1 - x)
    for share in (0.1, 0.5, 0.9, 0.999999):
        d = displace(x, w, -share * reach, norm)
        torch.testing.assert_close(gained(w, d), share * reach, rtol=1e-12, atol=0)
        best = twin.displace(norm.name, x[0].numpy(), w[0].numpy(), -share * float(reach))
        np.testing.assert_allclose(d[0].numpy(), best, rtol=0, atol=1e-12)


@THREE
@TYPES
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_only_the_ratio_of_slope_and_offset_matters(norm, dtype, scale):
    x, w, c = case(1, 0.3, dtype=dtype)
    plain, scaled = displace(x, w, c, norm), displace(x, scale * w, scale * c, norm)
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        plane_distance(scale * w, scale * c, norm), plane_distance(w, c, norm), rtol=1e-4, atol=0
    )


@THREE
@TYPES
def test_degenerate_planes_give_finite_displacements(norm, dtype):
    x, w, c = case(2, 0.3, dtype=dtype)
    zero, tiny = torch.zeros_like(w), torch.finfo(dtype).tiny
    nothing = torch.zeros_like(c)
    for slope, offset in ((zero, c), (w, nothing), (zero, nothing)):
        assert torch.equal(displace(x, slope, offset, norm), torch.zeros_like(x))
        assert not plane_distance(slope, offset, norm).isnan().any()
    far = displace(x, w * tiny, c, norm)
    assert far.isfinite().all()
    walls = x + far
    assert (torch.minimum(walls, 1 - walls)[w != 0].abs() <= 1e-6).all(), "all room is used"
    single = torch.zeros_like(w)
    single[:, 0, 0, 0] = tiny
    assert displace(x, single, c, norm).isfinite().all()
    outside = displace(x + 1e-7, w, c, norm)
    assert outside.isfinite().all()


@THREE
def test_nan_slope_gives_nan_displacement(norm):
    x, w, c = case(2, 0.3)
    w[1, 0, 0, 0] = float("nan")
    d = displace(x, w, c, norm)
    assert d[1].isnan().any() and d[[0, 2, 3]].isfinite().all()


@THREE
@TYPES
def test_an_example_does_not_depend_on_its_neighbours(norm, dtype):
    cases = [case(seed, need, dtype=dtype) for seed, need in enumerate((1e-6, 0.3, 0.9, 0.999, 1.5))]
    x, w, c = (torch.cat(parts) for parts in zip(*cases, strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    together = displace(x, w, c, norm)
    assert torch.equal(displace(x[order], w[order], c[order], norm), together[order])
    for i in range(len(x)):
        assert torch.equal(displace(x[i : i + 1], w[i : i + 1], c[i : i + 1], norm)[0], together[i])


@THREE
def test_the_gap_is_the_length_where_the_box_is_far(norm):
    g = torch.Generator().manual_seed(0)
    w, c = (
        torch.randn(5, 3, 4, 4, generator=g, dtype=torch.float64),
        torch.full((5,), 1e-3, dtype=torch.float64),
    )
    x = torch.full_like(w, 0.5)
    torch.testing.assert_close(
        norm.length(displace(x, w, c, norm)), plane_distance(w, c, norm), rtol=1e-12, atol=0
    )


def test_other_norms_are_refused():
    hollow = dict.fromkeys(("length", "ascend", "sample", "sample_boundary", "project"))
    other = type("Other", (Norm,), {"name": "other", **hollow})()
    with pytest.raises(AssertionError, match="not for other"):
        displace(*case(0, 0.3), other)
