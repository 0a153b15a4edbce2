from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, NORMS, Linf, parse_norm
from tests.reference import attacks as twin

EVERY = pytest.mark.parametrize("norm", [Linf(), L2(), L1(), L1(density=0.5)], ids=repr)
THREE = pytest.mark.parametrize("norm", [Linf(), L2(), L1()], ids=repr)
EXACT = pytest.mark.parametrize("norm", [Linf(), L1()], ids=repr)
SEEDS, SCALES = st.integers(0, 10_000), st.sampled_from([1e-4, 0.05, 1.0, 30.0])
BUDGETS = st.sampled_from([0.0, 1e-3, 8 / 255, 0.5, 3.0, 12.0, 1e6])


def images(seed, n=4, dtype=torch.float64):
    """Images with some pixels on the walls of the box."""
    x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return (1.4 * x - 0.2).clamp(0, 1)


def noise(seed, like):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


def euclid(d):
    return d.flatten(1).norm(dim=1)


# Projections


@THREE
@given(seed=SEEDS, scale=SCALES, eps=BUDGETS, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_projection_lands_in_ball_and_box(norm, seed, scale, eps, dtype):
    x0 = images(seed, dtype=dtype)
    p = norm.project(x0, x0 + scale * noise(seed, x0), eps)
    tiny = 16 * torch.finfo(dtype).eps
    assert p.dtype == dtype
    assert (norm.length(p - x0) <= eps + tiny * (1 + eps)).all()
    assert (p >= 0).all() and (p <= 1).all()


@THREE
@given(seed=SEEDS, scale=SCALES, eps=BUDGETS)
def test_projection_is_idempotent(norm, seed, scale, eps):
    x0 = images(seed)
    p = norm.project(x0, x0 + scale * noise(seed, x0), eps)
    torch.testing.assert_close(norm.project(x0, p, eps), p, rtol=0, atol=1e-12)


@THREE
@given(seed=SEEDS)
def test_projection_leaves_allowed_points_alone(norm, seed):
    x0 = images(seed)
    x = (x0 + norm.sample(x0, 0.9, Rng(seed))).clamp(0, 1)
    torch.testing.assert_close(norm.project(x0, x, 1.0), x, rtol=0, atol=1e-15)


@EXACT
@given(seed=SEEDS, scale=SCALES, eps=BUDGETS)
def test_exact_projection_is_non_expansive(norm, seed, scale, eps):
    x0 = images(seed)
    a, b = x0 + scale * noise(seed, x0), x0 + scale * noise(seed + 1, x0)
    moved = euclid(norm.project(x0, a, eps) - norm.project(x0, b, eps))
    assert (moved <= euclid(a - b) * (1 + 1e-12) + 1e-12).all()


@EXACT
@given(seed=SEEDS, scale=SCALES, eps=BUDGETS)
def test_exact_projection_is_closest_point(norm, seed, scale, eps):
    # p is closest in a convex set exactly if no allowed point z lies in front of it: <x - p, z - p> <= 0.
    x0 = images(seed)
    x = x0 + scale * noise(seed, x0)
    p = norm.project(x0, x, eps)
    for i in range(20):
        z = (x0 + norm.sample_boundary(x0, eps, Rng(seed).fold_in(i))).clamp(0, 1)
        assert (((x - p) * (z - p)).flatten(1).sum(1) <= 1e-9 * (1 + scale)).all()


@given(seed=SEEDS, scale=SCALES, eps=BUDGETS)
def test_l1_projection_equals_its_twin(seed, scale, eps):
    x0 = images(seed, n=2)
    x = x0 + scale * noise(seed, x0)
    expected = [twin.l1_ball_and_box(a, b, eps) for a, b in zip(x0.numpy(), x.numpy(), strict=True)]
    torch.testing.assert_close(
        L1().project(x0, x, eps), torch.from_numpy(np.stack(expected)), rtol=0, atol=1e-11
    )


def test_l1_projection_of_a_photo_sized_image_stays_in_the_ball_in_float32():
    x0 = torch.rand(2, 3, 64, 64)
    p = L1().project(x0, x0 + 0.3 * torch.randn_like(x0), 12.0)
    assert (L1().length((p - x0).double()) <= 12.0 * (1 + 1e-5)).all()
    assert (L1().length((p - x0).double()) >= 12.0 * (1 - 1e-4)).all()


def test_l1_projection_handles_ties():
    x0, x = torch.full((1, 1, 1, 4), 0.5), torch.full((1, 1, 1, 4), 0.9)
    torch.testing.assert_close(L1().project(x0, x, 0.8), torch.full((1, 1, 1, 4), 0.7))


@given(seed=SEEDS, eps=st.sampled_from([0.01, 0.1]))
def test_l2_projection_is_closest_point_where_the_box_does_not_bind(seed, eps):
    x0 = 0.4 + 0.2 * images(seed)
    x = x0 + noise(seed, x0)
    p = L2().project(x0, x, eps)
    torch.testing.assert_close(p - x0, eps * (x - x0) / euclid(x - x0)[:, None, None, None])


@THREE
def test_a_budget_of_zero_returns_the_image_itself(norm):
    x0 = images(0, dtype=torch.float32)
    assert torch.equal(norm.project(x0, x0 + noise(1, x0), 0.0), x0)


@THREE
@pytest.mark.parametrize("eps", [1e6, 1e30])
def test_a_huge_budget_leaves_only_the_box(norm, eps):
    x0 = images(0, dtype=torch.float32)
    x = x0 + 0.5 * eps * norm.ascend(noise(1, x0))
    torch.testing.assert_close(norm.project(x0, x, eps), x.clamp(0, 1))


@THREE
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_projection_does_not_hide_nan_and_keeps_other_examples(norm, bad):
    x0 = images(0)
    x = x0 + noise(1, x0)
    good = norm.project(x0, x, 0.5)
    x[1, 0, 0, 0] = bad
    p = norm.project(x0, x, 0.5)
    assert torch.equal(p[[0, 2, 3]], good[[0, 2, 3]])
    if bad != bad:
        assert p[1].isnan().any()


# Directions


@EVERY
@given(seed=SEEDS, scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e20]))
def test_directions_have_unit_length(norm, seed, scale):
    g = (scale * noise(seed, images(0))).float()
    torch.testing.assert_close(norm.length(norm.ascend(g)), torch.ones(4))


@pytest.mark.parametrize(
    ("norm", "dual"), [(Linf(), 1), (L2(), 2), (L1(density=0.001), float("inf"))], ids=repr
)
@given(seed=SEEDS)
def test_directions_are_the_steepest(norm, dual, seed):
    g = noise(seed, images(0))
    slope = (g * norm.ascend(g)).flatten(1).sum(1)
    torch.testing.assert_close(slope, g.flatten(1).norm(dual, dim=1))
    for i in range(10):
        other = norm.sample_boundary(g, 1.0, Rng(seed).fold_in(i))
        assert ((g * other).flatten(1).sum(1) <= slope + 1e-12).all()


def test_l1_directions_move_the_stated_share_of_the_largest_coordinates():
    g = noise(0, images(0))
    moved = L1(density=0.25).ascend(g) != 0
    assert (moved.flatten(1).sum(1) == 12).all()
    smallest_moved = g.abs().masked_fill(~moved, float("inf")).flatten(1).amin(1)
    assert (smallest_moved >= g.abs().masked_fill(moved, 0).flatten(1).amax(1)).all()


@EVERY
def test_a_zero_gradient_gives_a_zero_direction(norm):
    g = noise(0, images(0))
    g[1] = 0
    up = norm.ascend(g)
    assert (up[1] == 0).all() and up.isfinite().all()
    torch.testing.assert_close(norm.length(up)[[0, 2, 3]], torch.ones(3, dtype=g.dtype))


@EVERY
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_gradient_gives_nan_direction(norm, bad):
    g = noise(0, images(0))
    g[1, 2, 3, 3] = bad
    assert norm.ascend(g).isnan().flatten(1).any(1).tolist() == [False, True, False, False]


@EVERY
@pytest.mark.parametrize("length", [8 / 255, 2 / 255, 0.1, 1e-7])
def test_move_has_the_bits_of_a_step_in_the_steepest_direction(norm, length):
    x, g = images(0), noise(0, images(0))
    g[0] = 0
    g[1, 2, 3, 3], g[2, 0, 0, 0] = float("nan"), -float("inf")
    moved = norm.move(x, g, length)
    assert torch.equal(moved.nan_to_num(-1), (x + length * norm.ascend(g)).nan_to_num(-1))
    assert moved.isnan().flatten(1).any(1).tolist() == [False, True, True, False]
    assert torch.equal(moved[0], x[0])


def test_l1_directions_keep_unit_length_when_few_coordinates_have_a_slope():
    g = torch.zeros(1, 3, 4, 4)
    g[0, 0, 0, 0] = -2.0
    assert L1(density=0.5).ascend(g)[0, 0, 0, 0] == -1


# Random starts


@EVERY
@given(seed=SEEDS, eps=BUDGETS)
def test_samples_lie_inside_the_ball(norm, seed, eps):
    assert (norm.length(norm.sample(images(0), eps, Rng(seed))) <= eps * (1 + 1e-12)).all()


@EVERY
@given(seed=SEEDS, eps=BUDGETS)
def test_boundary_points_have_the_length_of_the_budget(norm, seed, eps):
    lengths = norm.length(norm.sample_boundary(images(0), eps, Rng(seed)))
    torch.testing.assert_close(lengths, torch.full((4,), eps, dtype=torch.float64))


@pytest.mark.parametrize("norm", [L2(), L1()], ids=repr)
def test_sampled_radii_are_uniform(norm):
    radii = norm.length(norm.sample(torch.empty(2000, 1, 2, 2), 1.0, Rng(0))).sort().values
    assert (radii - torch.linspace(0, 1, 2000)).abs().max() < 0.04


def test_linf_samples_are_uniform_in_the_ball():
    values = Linf().sample(torch.empty(500, 1, 2, 2), 1.0, Rng(0)).flatten().sort().values
    assert (values - torch.linspace(-1, 1, 2000)).abs().max() < 0.08


@EVERY
def test_samples_are_addressed_per_example(norm):
    like, rows = torch.empty(3, 3, 4, 4), torch.tensor([5, 9, 2])
    for draw in (norm.sample, norm.sample_boundary):
        together = draw(like, 1.0, Rng(1).per_example(rows))
        assert torch.equal(together[1], draw(like[:1], 1.0, Rng(1).per_example(rows[1:2]))[0])


@EVERY
def test_empty_batches_stay_empty(norm):
    x = torch.empty(0, 3, 4, 4)
    assert (
        norm.project(x, x, 1.0).shape == norm.ascend(x).shape == norm.sample(x, 1.0, Rng(0)).shape == x.shape
    )
    assert norm.length(x).shape == (0,)


# Names


@pytest.mark.parametrize(
    "text", ["Linf", "linf", "LINF", "l_inf", "inf", "np.inf", np.inf, float("inf"), Linf()]
)
def test_all_spellings_of_linf_are_parsed(text):
    assert parse_norm(text) == Linf()


@pytest.mark.parametrize(
    ("text", "norm"), [("l2", L2()), (2, L2()), (2.0, L2()), ("1", L1()), ("l1(0.1)", L1(density=0.1))]
)
def test_all_spellings_of_other_norms_are_parsed(text, norm):
    assert parse_norm(text) == norm


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("L3", "unknown norm 'L3' (known: Linf, L2, L1); did you mean"),
        ("lnf", 'did you mean "Linf"?'),
        ("L1(", "unknown norm"),
        ("L2(0.1)", "only L1 has a density"),
        ("L1(0)", "above 0 and up to 1"),
        ("L1(x)", "expected a number"),
        ("", "unknown norm"),
        (None, "unknown norm"),
        ("L\n1", "unknown norm"),
    ],
)
def test_unknown_norms_are_refused_with_a_hint(text, message):
    with pytest.raises(ValueError) as error:
        parse_norm(text)
    assert message in str(error.value)


@pytest.mark.parametrize("density", [0.0, -1.0, 1.5, float("nan"), "a", True])
def test_densities_are_shares(density):
    with pytest.raises(ValueError):
        L1(density=density)


def test_norms_are_values():
    assert [str(cls()) for cls in NORMS.values()] == list(NORMS) == ["Linf", "L2", "L1"]
    assert L1() == L1(density=0.05) != L1(density=0.1)
    assert len({Linf(), Linf(), L2(), L1(), L1()}) == 3
    assert parse_norm(str(L1(density=0.1))) == L1(density=0.1)
    assert pickle.loads(pickle.dumps(L1(density=0.1))) == L1(density=0.1)
    with pytest.raises(AttributeError):
        L1().density = 0.5  # pyright: ignore
