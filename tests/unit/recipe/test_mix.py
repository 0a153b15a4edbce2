from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.config.fields import adapter
from allrounder.config.schedules import Constant, Linear
from allrounder.config.time import Clock, Time
from allrounder.nn.mixing import Ema, Outer, Uniform
from allrounder.recipe.mix import Exchange, Mix, Shares


def shares(curve: list[float], rest: dict[str, float]) -> Shares:
    at = tuple(Time.parse(f"{100 * i // max(len(curve) - 1, 1)}%") for i in range(len(curve)))
    return Shares(lead="a", curve=Linear(at=at, to=tuple(curve)), rest=rest)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    st.integers(1, 100),
    st.sampled_from(["epoch", "step"]),
)
def test_shares_lie_in_the_simplex(curve: list[float], rest: list[float], t: int, pace: str):
    names = [f"b{i}" for i in range(len(rest))]
    value = shares(curve, {name: part / sum(rest) for name, part in zip(names, rest, strict=True)})
    at_step = value.at(t, Clock(10, 10, pace), ["a", *names])  # pyright: ignore[reportArgumentType]
    assert list(at_step) == ["a", *names]
    assert all(0 <= share <= 1 for share in at_step.values())
    assert sum(at_step.values()) == pytest.approx(1, abs=1e-12)


def test_the_second_share_of_three_is_b_of_the_remainder():
    at_step = shares([1, 0], {"b": 0.3, "c": 0.7}).at(50, Clock(10, 10), ["a", "b", "c"])
    assert at_step == pytest.approx({"a": 0.5, "b": 0.15, "c": 0.35})


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"b": 0.6, "c": 0.6}, "sum to one"),
        ({"b": 1.5}, "less than or equal to 1"),
        ({"a": 1.0}, "is the lead"),
    ],
)
def test_shares_that_cannot_sum_to_one_are_refused(rest: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        shares([1], rest)


def test_a_curve_outside_of_zero_and_one_is_refused():
    with pytest.raises(ValueError, match=r"shares in \[0, 1\], got 0.5 to 1.5"):
        shares([0.5, 1.5], {})


def exchange(start: object, every: object, when: str = "epoch-end") -> Exchange:
    return Exchange(start=Time.parse(start), every=Time.parse(every), when=when)  # pyright: ignore[reportArgumentType]


def due(value: Exchange, clock: Clock) -> list[int]:
    return [t for t in range(1, clock.total_steps + 1) if value.is_due(t, clock)]


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
    expected = [
        t for t in range(1, clock.total_steps + 1) if clock.epoch(t) in {clock.epoch(end) for end in ends}
    ]
    assert due(exchange(start, every, "every-step"), clock) == expected


@pytest.mark.parametrize("when", ["epoch-end", "every-step"])
@given(st.integers(1, 8), st.integers(1, 7), st.fractions(0, 9), st.fractions(Fraction(1, 50), 3))
def test_the_next_exchange_is_the_first_one_that_follows_and_never_the_last_step(
    when: str, epochs: int, steps: int, start: Fraction, every: Fraction
):
    clock, value = Clock(epochs, steps), exchange(start, every, when)
    steps_due = [t for t in due(value, clock) if t < clock.total_steps]
    for t in range(clock.total_steps + 1):
        assert value.next_due(t, clock) == next((step for step in steps_due if step > t), None)


def test_a_shortened_run_keeps_the_meaning_of_its_times():
    assert due(exchange("62.5%", "25/6%"), Clock(2, 60)) == [75, 80, 85, 90, 95, 100, 105, 110, 115, 120]


def test_a_period_shorter_than_a_step_is_one_step():
    assert due(exchange(0, "0.1%"), Clock(1, 3)) == [1, 2, 3]


def test_the_default_rule_is_the_moving_average_and_is_not_written():
    assert Mix() == Mix(rule=Ema(), decay=Constant(value=0.999))
    assert adapter(Mix).dump_python(Mix()) == {
        "decay": 0.999,
        "buffers": "average",
    }


def test_a_rule_without_moving_average_has_decay_zero_and_equal_shares():
    mix = Mix(rule=Uniform())
    assert mix.decay == Constant(value=0.0)
    assert mix.shares_at(1, Clock(1, 1), ["a", "b"]) == {"a": 0.5, "b": 0.5}
    table = adapter(Mix).dump_python(mix)
    assert table["rule"] == {"kind": "uniform"}
    assert adapter(Mix).validate_python(table) == mix


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decay": Constant(value=0.999)}, 'the rule "uniform" keeps no moving average; remove the decay'),
        ({"shares": shares([1, 0], {})}, 'the rule "uniform" does not read shares; remove them'),
    ],
)
def test_fields_that_a_rule_does_not_use_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Mix(rule=Uniform(), **fields)


def test_a_rule_that_steps_at_exchanges_needs_them():
    with pytest.raises(ValueError, match='missing; the rule "outer" acts at exchanges only'):
        Mix(rule=Outer())
    assert Mix(rule=Outer(), exchange=exchange(1, 1)).decay == Constant(value=0.0)


@given(
    epochs=st.integers(1, 6),
    length=st.integers(1, 7),
    start=st.integers(0, 40),
    every=st.integers(1, 40),
    when=st.sampled_from(["epoch-end", "every-step"]),
)
def test_due_steps_are_listed_and_counted_without_visiting_the_others(
    epochs: int, length: int, start: int, every: int, when: Literal["epoch-end", "every-step"]
):
    clock = Clock(epochs, length)
    exchange = Exchange(start=Time(Fraction(start, 6)), every=Time(Fraction(every, 6)), when=when)
    due = [t for t in range(1, clock.total_steps + 1) if exchange.is_due(t, clock)]
    assert list(exchange.due_steps(clock)) == due
    assert exchange.count_due(clock) == len(due)
    mix = Mix(exchange=exchange)
    assert mix.count_exchanges(clock) == sum(mix.exchange_due(t, clock) for t in range(1, clock.total_steps))


@pytest.mark.parametrize("when", ["epoch-end", "every-step"])
def test_a_run_of_any_length_is_counted_at_once(when: Literal["epoch-end", "every-step"]):
    exchange = Exchange(start=Time.parse(0), every=Time.parse(1), when=when)
    clock = Clock(10**12, 400)
    assert exchange.count_due(clock) == 10**12 * (1 if when == "epoch-end" else 400)
    assert next(exchange.due_steps(clock)) == (400 if when == "epoch-end" else 1)
