from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.report.statistics import McNemar, format_percent, wilson_interval


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.00"),
        (1.0, "100.00"),
        (0.4890, "48.90"),
        (2 / 3, "66.67"),
        ((0.4608 + 0.5897) / 2, "52.53"),
        (0.99994, "99.99"),
    ],
)
def test_percents_have_two_decimals_and_halves_go_up(share: float, text: str):
    assert format_percent(share) == text


@given(st.integers(0, 20_000))
def test_every_half_of_ten_thousand_images_is_written_as_by_hand(halves: int):
    whole, rest = divmod(halves * 5 + 5, 10)  # in thousandths of a percent, to hundredths
    assert format_percent(halves / 20_000) == f"{whole // 100}.{whole % 100:02d}" and rest in (0, 5)


def closed_form(correct: int, n: int) -> tuple[float, float]:
    """The roots of (p - s)^2 = z^2 s (1 - s) / n in s."""
    z, p = 1.959963984540054, correct / n
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize(("correct", "n"), [(1, 2), (3, 10), (842, 1000), (1, 10_000), (9_999, 10_000)])
def test_the_interval_is_wilsons(correct: int, n: int):
    assert wilson_interval(correct / n, n) == pytest.approx(closed_form(correct, n), abs=1e-12)


@given(st.integers(1, 5000))
def test_the_interval_of_none_and_of_all_ends_at_the_share(n: int):
    z2 = 1.959963984540054**2
    assert wilson_interval(0.0, n) == (0.0, pytest.approx(z2 / (n + z2)))
    assert wilson_interval(1.0, n) == (pytest.approx(n / (n + z2)), 1.0)


@given(st.integers(1, 300), st.data())
def test_the_interval_holds_the_share_and_is_the_mirror_of_its_opposite(n: int, data: st.DataObject):
    correct = data.draw(st.integers(0, n))
    low, high = wilson_interval(correct / n, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert wilson_interval(1 - correct / n, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_nothing_is_known_without_images():
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        (5, 15, 0.0414),
        (15, 5, 0.0414),
        (0, 0, 1.0),
        (7, 7, 1.0),
        (3, 4, 1.0),
        (1, 0, 1.0),
        (0, 5, 0.0625),
        (0, 6, 0.03125),
        (4, 11, 0.1185),
        (6, 16, 0.0525),
    ],
)
def test_the_paired_test_gives_known_values(b: int, c: int, p: float):
    assert McNemar(100, b, c, 100).p_value == pytest.approx(p, rel=0.01)


def slowly(b: int, c: int) -> float:
    """The chance, tossing b + c coins, of a split that is as uneven or more."""
    n = b + c
    splits = [math.comb(n, k) for k in range(n + 1) if abs(2 * k - n) >= abs(b - c)]
    return sum(splits) / 2**n


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_paired_test_adds_up_every_split_that_is_as_uneven(b: int, c: int):
    assert McNemar(0, b, c, 0).p_value == pytest.approx(slowly(b, c), rel=1e-12)


@pytest.mark.parametrize(
    ("b", "c", "z"), [(25_300, 24_700, 599 / 50_000**0.5), (5_100, 4_900, 199 / 10_000**0.5)]
)
def test_large_counts_are_exact_and_quick(b: int, c: int, z: float):
    # The normal approximation, with its correction for whole numbers.
    assert McNemar(0, b, c, 0).p_value == pytest.approx(math.erfc(z / 2**0.5), rel=0.01)


def test_the_surest_differences_do_not_overflow():
    assert McNemar(0, 50_000, 0, 0).p_value == 0.0
    assert 0 < McNemar(0, 1000, 0, 0).p_value < 1e-290


def test_the_interval_of_a_difference_is_written_out_by_hand():
    # 16 and 4 of 60: (17 - 5) / 62 and its normal interval.
    paired = McNemar(20, 16, 4, 20)
    half = 1.959963984540054 * math.sqrt((17 / 62 + 5 / 62 - (12 / 62) ** 2) / 62)
    assert paired.difference == 0.2
    assert paired.interval == pytest.approx((12 / 62 - half, 12 / 62 + half), abs=1e-12)
    assert paired.interval == pytest.approx((0.05332, 0.33378), abs=5e-6)


COUNTS = st.integers(0, 200)


@given(COUNTS, COUNTS, COUNTS, COUNTS.map(lambda n: n + 1))
def test_the_interval_of_a_difference_holds_it_and_mirrors(both: int, b: int, c: int, neither: int):
    paired, mirrored = McNemar(both, b, c, neither), McNemar(both, c, b, neither)
    low, high = paired.interval
    assert -1 <= low <= paired.difference <= high <= 1
    assert mirrored.interval == pytest.approx((-high, -low))
    assert mirrored.p_value == paired.p_value and 0 <= paired.p_value <= 1
    assert len(paired) == both + b + c + neither


def test_a_comparison_prints_as_one_line():
    assert str(McNemar(50, 15, 5, 30)) == "+10.00 [+0.99, +18.61]  p=0.04139  n=100"
