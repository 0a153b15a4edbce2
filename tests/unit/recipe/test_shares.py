"""Shares with one curve for each learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.config.fields import adapter
from allrounder.config.schedules import Constant, Cosine, Linear, Schedule, Step
from allrounder.config.time import Clock, Pace, Time
from allrounder.errors import RecipeError
from allrounder.recipe.lint import warnings_for
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.shares import Shares
from allrounder.training.record import RunRecord
from tests.support.trainings import PAIR, go, recipe

CLOCK = Clock(10, 10)
CURVES = (
    "shares = { curves = { linf = { kind = 'linear', at = [0, '100%'], to = [1, 0.5] }, natural = 0.5 } }"
)
OWN = ('shares = { lead = "linf", curve = 0.6 }', CURVES)


def linear(*to: float) -> Linear:
    return Linear(at=tuple(Time.parse(f"{100 * i // (len(to) - 1)}%") for i in range(len(to))), to=to)


def step(*to: float) -> Step:
    return Step(at=tuple(Time.parse(i) for i in range(len(to))), to=to)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=4), st.integers(1, 100))
def test_shares_are_the_curves_divided_by_their_sum(values: list[float], t: int):
    names = [f"a{i}" for i in range(len(values))]
    shares = Shares(curves={name: linear(value, 1.0) for name, value in zip(names, values, strict=True)})
    at_step = shares.at(t, CLOCK, names)
    now = [value + (1 - value) * CLOCK.schedule_step(t) / 100 for value in values]
    assert list(at_step.values()) == pytest.approx([value / sum(now) for value in now])


@pytest.mark.parametrize("pace", ["epoch", "step"])
@pytest.mark.parametrize(
    ("curves", "epoch"),
    [
        ([Constant(value=0.0), Constant(value=0.0)], 1),
        ([Constant(value=0.0), linear(1.0, 0.0)], 10),
        ([linear(1.0, 0.0, 1.0), linear(0.5, 0.0, 0.0)], 5),
        ([step(1, 1, 1, 0, 0, 1), step(1, 1, 0, 0, 1, 1)], 3),
        ([linear(1.0, 0.0), linear(0.0, 1.0)], None),
        ([step(1, 0, 1), step(0, 1, 0)], None),
        ([Cosine(start=1.0, end=0.1), Constant(value=0.0)], None),
    ],
)
def test_a_time_at_which_all_curves_are_zero_is_found(curves: list[Schedule], epoch: int | None, pace: Pace):
    shares = Shares(curves={f"a{i}": curve for i, curve in enumerate(curves)})
    expected = None if epoch is None else f"all are 0 in epoch {epoch}; at every time, expected one above 0"
    assert shares.find_zero(10, pace) == expected


def test_a_zero_between_the_examined_times_raises_at_its_step():
    with pytest.raises(RecipeError, match=r"mix\.shares\.curves: all are 0 at step 7; expected one above 0"):
        Shares(curves={"a": Constant(value=0.0)}).at(7, CLOCK, ["a"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "missing; it is required, unless there are curves"),
        ({"lead": "a"}, "missing; it is required, unless there are curves"),
        ({"lead": "a", "curves": {"a": 1.0}}, "curves give the share of every learner"),
        ({"rest": {"a": 1.0}, "curves": {"a": 1.0}}, "curves give the share of every learner"),
    ],
)
def test_exactly_one_form_is_given(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        adapter(Shares).validate_python(fields)


def test_each_form_is_written_without_the_other():
    value = recipe(PAIR, OWN)
    assert Recipe.loads(value.dumps()) == value
    assert not {"lead", "curve", "rest"} & value._to_table()["mix"]["shares"].keys()
    assert recipe()._to_table()["mix"]["shares"] == {"lead": "linf", "curve": 0.6, "rest": {}}


def test_times_of_every_curve_must_be_in_order():
    wrong = CURVES.replace("[0, '100%']", "[2, '10%']")
    with pytest.raises(RecipeError, match=r"mix.shares.curves.linf: expected times in ascending order"):
        recipe(PAIR, (OWN[0], wrong))


def test_exchanges_while_one_learner_has_all_shares_are_noticed():
    alone = CURVES.replace("natural = 0.5", "natural = { kind = 'step', at = [0, 2], to = [0, 1] }")
    (warning,) = warnings_for(recipe(PAIR, (OWN[0], alone)), Clock(3, 10))
    assert warning.startswith("1 of 3 exchanges happen while the share of linf is 1 (at epoch 1)")


def test_a_run_trains_and_logs_its_shares(tmp_path: Path):
    run = go(recipe(PAIR, OWN), tmp_path / "run")
    record = RunRecord.read(run.folder)
    logged = [event["share"] for event in record.events if event.get("learner") == "natural"]
    assert logged == pytest.approx([0.5 / (0.5 + 1 - t / 6) for t in (1, 2, 3)])
    assert sum(record.count_exchanges().values()) == 2
