"""How long a training will still take, from the seconds in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allrounder.config.time import Clock
from allrounder.recipe.recipe import Recipe
from allrounder.training.eta import Timing
from allrounder.training.record import Event, RunRecord

STEPS = 10
"""Steps of an epoch."""


def epoch(number: int, seconds: float, learner: str = "a") -> Event:
    return {"event": "epoch", "t": STEPS * number, "epoch": number, "learner": learner, "seconds": seconds}


def validation(t: int, seconds: float) -> Event:
    return {"event": "validation", "t": t, "epoch": -(-t // STEPS), "seconds": seconds}


def record(*events: Event, epochs: int = 10, **settings: Any) -> RunRecord:
    table = {"epochs": epochs, "task": [{"name": "a"}], "validation": {"every": "20%", **settings}}
    return RunRecord(Path("run"), table, events, finished=False, running=True)


def test_before_the_first_epoch_nothing_is_known():
    timing = Timing.measure(record())
    assert timing.remaining() is None and timing.logged_seconds == 0 and timing.epochs_left == 10


def test_what_remains_is_epochs_and_validations_of_recent_lengths():
    timing = Timing.measure(record(epoch(1, 4.0), epoch(2, 6.0), validation(20, 1.0), epoch(3, 5.0)))
    assert timing.epoch_seconds == 5.0 and timing.steps_per_epoch == STEPS
    assert timing.epochs_left == 7 and timing.validations_left == 4
    assert timing.remaining() == 7 * 5.0 + 4 * 1.0
    assert timing.logged_seconds == 16.0


def test_the_rest_counts_down_until_the_present_epoch_takes_too_long():
    timing = Timing.measure(record(epoch(1, 4.0), epoch(2, 4.0), images=0))
    assert [timing.remaining(since) for since in (0.0, 1.0, 4.0, 400.0)] == [32.0, 31.0, 28.0, 28.0]


def test_after_the_last_epoch_only_validations_remain():
    events = [epoch(number, 1.0) for number in range(1, 11)]
    timing = Timing.measure(record(*events, validation(80, 3.0)))
    assert [timing.remaining(since) for since in (0.0, 1.0, 9.0)] == [3.0, 2.0, 0.0]
    assert Timing.measure(record(*events, validation(100, 3.0))).remaining() == 0.0


def test_one_short_epoch_after_an_interruption_changes_little():
    steady = Timing.measure(record(*(epoch(number, 8.0) for number in (1, 2, 3))))
    resumed = Timing.measure(record(epoch(1, 8.0), epoch(2, 0.5), epoch(3, 8.0)))
    assert steady.remaining() == resumed.remaining()


def test_epochs_of_another_machine_are_forgotten():
    events = [epoch(number, 100.0 if number < 4 else 2.0) for number in range(1, 9)]
    assert Timing.measure(record(*events, images=0)).remaining() == 2 * 2.0


def test_learners_on_several_ranks_train_at_the_same_time():
    timing = Timing.measure(record(epoch(1, 3.0), epoch(1, 5.0, "b"), images=0))
    assert timing.epoch_seconds == timing.logged_seconds == 5.0


@pytest.mark.parametrize("every", ["20%", "30%", "7%", 1, 0.25, 3, 40])
@pytest.mark.parametrize("last", [0, 1, 55, 99, 100])
def test_validations_are_counted_as_the_trainer_takes_them(every: str | float, last: int):
    from allrounder.training.model_selection import ModelSelector

    selector: Any = object.__new__(ModelSelector)
    selector.settings = Recipe.load("embedded/nt", [f"validation.every={every!r}"]).validation
    selector.clock = Clock(10, STEPS)
    selector.split = ()
    due = [t for t in range(1, 101) if selector.is_due(t)]
    done = max((t for t in due if t <= last), default=0)
    events = [epoch(1, 1.0), *([validation(done, 1.0)] if done else [])]
    timing = Timing.measure(record(*events, every=every))
    assert timing.validations_left == len([t for t in due if t > done])
