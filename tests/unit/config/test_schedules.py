from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.config.fields import adapter
from allrounder.config.schedules import (
    DECAYS,
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    EmaWarmup,
    Linear,
    Step,
    TimeConstant,
)
from allrounder.config.time import Clock, Time

CLOCK = Clock(epochs=120, steps_per_epoch=391)


def linear(at: list[object], to: list[float]) -> Linear:
    return Linear(at=tuple(Time.parse(time) for time in at), to=tuple(to))


def test_whole_epochs_and_shares_of_the_run_become_whole_steps():
    assert Time.parse(75).to_steps(CLOCK) == 75 * 391
    assert Time.parse("62.5%").to_steps(CLOCK) == 75 * 391
    assert Time.parse("100/3%").to_steps(CLOCK) == 40 * 391
    assert Time.parse("62.5%").to_steps(Clock(3, 7)) == 13  # 13.125 steps


@pytest.mark.parametrize("text", ["soon", "-1", -0.5, "101%", "1/0", True, None, "%", float("nan"), [1]])
def test_an_invalid_time_is_refused(text: object):
    with pytest.raises(ValueError, match="expected a time"):
        Time.parse(text)


@given(st.fractions(0, 1), st.sampled_from(["epochs", "run"]))
def test_times_survive_being_written(amount: Fraction, unit: str):
    time = Time(amount, unit)  # pyright: ignore[reportArgumentType]
    assert Time.parse(time.to_toml()) == time


def test_the_released_share_curve_has_its_known_values():
    curve = linear([0, "100/3%", "200/3%", "100%"], [1, 1, 1, 0.4])
    known = {1: 1.0, 80: 1.0, 85: 0.925, 100: 0.7, 120: 0.4}
    for epoch, value in known.items():
        t = (epoch - 1) * CLOCK.steps_per_epoch + 1  # any step of the epoch, as schedules hold for an epoch
        assert math.isclose(curve(CLOCK.schedule_step(t), CLOCK), value)


def test_a_pace_of_steps_follows_every_step():
    clock = Clock(10, 10, "step")
    curve = linear([0, "100%"], [0, 1])
    assert [curve(clock.schedule_step(t), clock) for t in (1, 50, 100)] == [0.01, 0.5, 1.0]


def test_epochs_are_counted_from_one():
    clock = Clock(2, 3)
    assert [clock.epoch(t) for t in range(1, 7)] == [1, 1, 1, 2, 2, 2]


def test_steps_hold_from_their_time_on():
    step = Step(at=(Time.parse(0), Time.parse(75), Time.parse(90)), to=(0.1, 0.01, 0.001))
    values = [step(CLOCK.schedule_step(epoch * 391), CLOCK) for epoch in (1, 74, 75, 89, 90, 120)]
    assert values == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]


def test_a_cycle_rises_to_its_peak_and_falls_to_zero():
    clock = Clock(1, 100, "step")
    cycle = Cyclic(peak=0.2)
    assert cycle(50, clock) == 0.2
    assert cycle(25, clock) == pytest.approx(0.1) == cycle(75, clock)
    assert cycle(100, clock) == 0.0


def test_a_cosine_starts_and_ends_at_its_values():
    clock = Clock(1, 1000, "step")
    cosine = Cosine(start=0.1, end=0.01, warmup=Time.parse("10%"))
    assert cosine(50, clock) == pytest.approx(0.05)
    assert cosine(100, clock) == pytest.approx(0.1)
    assert cosine(550, clock) == pytest.approx(0.055)
    assert cosine(1000, clock) == pytest.approx(0.01)


def test_curves_that_end_in_zero_do_not_waste_the_last_epoch():
    clock = Clock(1, 10)
    assert Cosine(start=0.1)(clock.schedule_step(1), clock) == pytest.approx(0.05)
    assert Cyclic(peak=0.2)(clock.schedule_step(10), clock) == pytest.approx(0.2)


def test_the_released_warmup_has_its_published_values():
    warmup = EmaWarmup()
    assert [warmup(t, CLOCK) for t in (1, 2, 3)] == pytest.approx([0.1, 2 / 11, 0.25])
    assert warmup(8990, CLOCK) < 0.999 == warmup(8991, CLOCK)


def test_the_time_constant_of_the_papers_gives_their_decay():
    assert TimeConstant(over=Time.parse("1000/391"))(1, CLOCK) == pytest.approx(0.999)
    assert TimeConstant(over=Time.parse("0.001%"))(1, CLOCK) == 0.0
    with pytest.raises(ValueError, match="above 0"):
        TimeConstant(over=Time.parse(0))


KNOTS = st.lists(st.tuples(st.integers(0, 100), st.floats(-10, 10)), min_size=1, max_size=6)


@given(KNOTS, st.integers(1, 200), st.sampled_from([Linear, Step]))
def test_schedules_stay_between_their_extremes(knots: list[tuple[int, float]], t: int, kind: type):
    knots.sort(key=lambda knot: knot[0])
    schedule = kind(at=tuple(Time.parse(f"{at}%") for at, _ in knots), to=tuple(to for _, to in knots))
    value = schedule(t, Clock(10, 20, "step"))
    assert min(schedule.bounds()) - 1e-9 <= value <= max(schedule.bounds()) + 1e-9


@given(KNOTS)
def test_a_linear_schedule_passes_through_its_knots(knots: list[tuple[int, float]]):
    knots = sorted({at: to for at, to in knots}.items())
    schedule = linear([f"{at}%" for at, _ in knots], [to for _, to in knots])
    for at, to in knots:
        assert schedule(10 * at, Clock(10, 100, "step")) == pytest.approx(to)


@pytest.mark.parametrize(
    ("at", "to", "message"),
    [
        ([], [], "one value for every time"),
        ([1, 2], [1.0], "one value for every"),
        ([2, 1], [1, 2], "ascending"),
    ],
)
def test_knots_that_make_no_curve_are_refused(at: list[object], to: list[float], message: str):
    with pytest.raises(ValueError, match=message):
        linear(at, to)


@pytest.mark.parametrize("table", [SCHEDULES, DECAYS])
def test_every_schedule_is_written_and_read_again(table: dict[str, type]):
    made = {
        "constant": Constant(value=0.3),
        "linear": linear([0, "50%"], [0.1, 0.2]),
        "step": Step(at=(Time.parse(3),), to=(0.5,)),
        "cyclic": Cyclic(peak=0.2),
        "cosine": Cosine(start=0.1),
        "warmup": EmaWarmup(),
        "time-constant": TimeConstant(over=Time.parse("2%")),
    }
    for name, cls in table.items():
        plain = adapter(cls).dump_python(made[name])
        assert adapter(cls).validate_python(plain) == made[name]
