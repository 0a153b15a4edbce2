from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allrounder.config.schedules import Constant, Linear
from allrounder.config.time import Clock, Time
from allrounder.distributed import Placement, World
from allrounder.recipe.mix import Exchange, Mix, Mixer, Shares

WORLD = World(0, 1, torch.device("cpu"))


def shares(curve: list[float], rest: dict[str, float]) -> Shares:
    at = tuple(Time.read(f"{100 * i // max(len(curve) - 1, 1)}%") for i in range(len(curve)))
    return Shares(lead="a", curve=Linear(at=at, to=tuple(curve)), rest=rest)


def weights(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((3,), value, dtype=torch.float64), "count": torch.tensor(int(value))}


def mixer(mix: Mix, names: str, start: float = 0.0, clock: Clock | None = None) -> Mixer:
    return Mixer(mix, Placement.alone(list(names)), weights(start), WORLD, clock or Clock(10, 10))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    st.integers(1, 100),
    st.sampled_from(["epoch", "step"]),
)
def test_shares_lie_in_the_simplex(curve: list[float], rest: list[float], t: int, pace: str):
    names = [f"b{i}" for i in range(len(rest))]
    value = shares(curve, {name: part / sum(rest) for name, part in zip(names, rest, strict=True)})
    found = value.at(t, Clock(10, 10, pace), ["a", *names])  # pyright: ignore[reportArgumentType]
    assert list(found) == ["a", *names]
    assert all(0 <= share <= 1 for share in found.values())
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)


def test_the_second_share_of_three_is_b_of_what_the_first_leaves():
    found = shares([1, 0], {"b": 0.3, "c": 0.7}).at(50, Clock(10, 10), ["a", "b", "c"])
    assert found == pytest.approx({"a": 0.5, "b": 0.15, "c": 0.35})


@pytest.mark.parametrize(("curve", "winner"), [(1.0, "a"), (0.0, "b")])
def test_a_share_of_exactly_zero_or_one_is_a_real_weight(curve: float, winner: str):
    mix = Mix(decay=Constant(value=0.0), shares=Shares(lead="a", curve=Constant(value=curve)))
    both = mixer(mix, "ab", start=9.0)
    both.observe("a", weights(1.0), 1)
    both.observe("b", weights(2.0), 1)
    assert torch.equal(both.collect()["w"], weights({"a": 1.0, "b": 2.0}[winner])["w"])


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ({"b": 0.6, "c": 0.6}, "sum to one"),
        ({"b": 1.5}, "less than or equal to 1"),
        ({"a": 1.0}, "is the lead"),
    ],
)
def test_shares_that_cannot_sum_to_one_are_refused(rest: dict[str, float], said: str):
    with pytest.raises(ValueError, match=said):
        shares([1], rest)


def test_a_curve_outside_of_zero_and_one_is_refused():
    with pytest.raises(ValueError, match=r"shares in \[0, 1\], got 0.5 to 1.5"):
        shares([0.5, 1.5], {})


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 0.999), st.floats(0, 1)),
        min_size=1,
        max_size=30,
    )
)
def test_the_parts_add_up_to_the_monolithic_average(path: list[tuple[float, float, float, float]]):
    # A decay and a share of its own at every step: the identity holds for any of them.
    clock = Clock(len(path), 1, "step")
    total = weights(3.0)["w"].clone()
    parts = {"a": total.clone(), "b": torch.zeros_like(total)}
    split = Mixer(Mix(shares=shares([1], {})), Placement.alone(["a", "b"]), weights(3.0), WORLD, clock)
    for t, (a, b, decay, share) in enumerate(path, start=1):
        at = Mix(decay=Constant(value=decay), shares=Shares(lead="a", curve=Constant(value=share)))
        split.mix = at
        split.observe("a", weights(a), t)
        split.observe("b", weights(b), t)
        total = decay * total + (1 - decay) * (share * weights(a)["w"] + (1 - share) * weights(b)["w"])
        parts = {n: decay * parts[n] for n in parts}
    assert torch.allclose(split.collect()["w"], total, atol=1e-12)


def test_counters_are_the_first_learners_and_are_never_averaged():
    both = mixer(Mix(decay=Constant(value=0.5), shares=shares([0.5], {})), "ab")
    both.observe("a", weights(4.0), 1)
    both.observe("b", weights(7.0), 1)
    assert both.collect()["count"] == 4


def test_collecting_changes_no_part():
    both = mixer(Mix(decay=Constant(value=0.5), shares=shares([0.5], {})), "ab")
    both.observe("a", weights(4.0), 1)
    both.observe("b", weights(6.0), 1)
    assert torch.equal(both.collect()["w"], both.collect()["w"])


def exchange(start: object, every: object, when: str = "epoch-end") -> Exchange:
    return Exchange(start=Time.read(start), every=Time.read(every), when=when)  # pyright: ignore[reportArgumentType]


def due(value: Exchange, clock: Clock) -> list[int]:
    return [t for t in range(1, clock.total + 1) if value.due(t, clock)]


def test_the_papers_exchange_at_the_end_of_epochs_75_to_120():
    assert due(exchange(75, 5), Clock(120, 4)) == [4 * epoch for epoch in range(75, 121, 5)]


def test_the_released_exchange_is_at_every_step_of_those_epochs():
    clock = Clock(120, 4)
    expected = [4 * (e - 1) + step for e in range(75, 121, 5) for step in (1, 2, 3, 4)]
    assert due(exchange(75, 5, "every-step"), clock) == expected


@given(st.integers(1, 8), st.integers(1, 7), st.fractions(0, 9), st.fractions(Fraction(1, 50), 3))
def test_every_step_of_an_epoch_is_due_where_one_of_its_steps_ends_a_period(
    epochs: int, steps: int, start: Fraction, every: Fraction
):
    clock = Clock(epochs, steps)
    ends = due(exchange(start, every), clock)
    expected = [t for t in range(1, clock.total + 1) if clock.epoch(t) in {clock.epoch(end) for end in ends}]
    assert due(exchange(start, every, "every-step"), clock) == expected


def test_a_shortened_run_keeps_the_meaning_of_its_times():
    assert due(exchange("62.5%", "25/6%"), Clock(2, 60)) == [75, 80, 85, 90, 95, 100, 105, 110, 115, 120]


def test_a_period_shorter_than_a_step_is_one_step():
    assert due(exchange(0, "0.1%"), Clock(1, 3)) == [1, 2, 3]


def test_a_single_learner_without_memory_is_copied_bit_for_bit():
    alone = mixer(Mix.solo(), "a", start=5.0)
    w = {
        "w": torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "count": torch.tensor(1),
    }
    alone.observe("a", w, 1)
    assert torch.equal(alone.collect()["w"], w["w"])
