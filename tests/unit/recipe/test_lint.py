"""Remarks on recipes that do what their author may not expect."""

from __future__ import annotations

import pytest

from allrounder.config.time import Clock, Time
from allrounder.recipe.lint import shortening_warnings, warnings_for
from allrounder.recipe.recipe import Recipe
from tests.support.refusals import answer
from tests.support.trainings import PAIR, SOLO, recipe

CLOCK = Clock(20, 10)
EXCHANGE = "exchange = { start = 1, every = 1 }"
LINEAR = "curve = { kind = 'linear', at = [0, '50%', '100%'], to = [1, 1, 0] }"


def remarks(*sets: tuple[str, str], clock: Clock = CLOCK) -> list[str]:
    return warnings_for(recipe(PAIR, ("epochs = 3", "epochs = 20"), *sets), clock)


def test_a_recipe_without_exchanges_or_with_sound_ones_gets_none():
    assert warnings_for(recipe(SOLO), CLOCK) == []
    assert remarks() == []
    assert remarks((EXCHANGE, "")) == []


def test_exchanges_that_never_happen_are_noticed():
    assert remarks((EXCHANGE, "exchange = { start = 21, every = 5 }")) == [
        "no exchange ever happens: it starts at 21, every 5, of 20 epochs"
    ]


def test_exchanges_of_a_rule_without_shares_are_checked_too():
    uniform = [
        ("decay = 0.8", 'rule = { kind = "uniform" }'),
        ('shares = { lead = "linf", curve = 0.6 }', ""),
    ]
    assert remarks(*uniform) == []
    assert remarks(*uniform, (EXCHANGE, "exchange = { start = 21, every = 5 }")) == [
        "no exchange ever happens: it starts at 21, every 5, of 20 epochs"
    ]


def test_exchanges_that_overwrite_the_others_with_the_lead_are_counted_and_dated():
    (remark,) = remarks(("curve = 0.6", LINEAR), (EXCHANGE, "exchange = { start = 5, every = 5 }"))
    assert remark == (
        "2 of 4 exchanges happen while the share of linf is 1 (at epoch 5, 10): "
        "they overwrite natural with linf alone"
    )
    (many,) = remarks(("curve = 0.6", LINEAR))
    assert many.startswith(
        "10 of 20 exchanges happen while the share of linf is 1 (at epoch 1, 2, 3, ... 10)"
    )


def test_an_average_that_remembers_more_than_a_period_is_noticed():
    (remark,) = remarks(("decay = 0.8", "decay = 0.99"))
    assert remark == (
        "the global average has a time constant of 100 steps, 10.0 times the 10 steps between exchanges: "
        "each exchange sets the learners back"
    )


def test_exchanges_at_every_step_are_dated_by_their_epochs():
    every_step = "exchange = { start = 5, every = 5, when = 'every-step' }"
    overwriting, remembering = remarks(("curve = 0.6", LINEAR), (EXCHANGE, every_step))
    assert overwriting.startswith("20 of 40 exchanges happen while the share of linf is 1 (at epoch 5, 10)")
    assert remembering.startswith("the global average has a time constant of 5 steps, 5.0 times the 1 steps")


@pytest.mark.parametrize("when", ["epoch-end", "every-step"])
def test_advice_takes_work_in_proportion_to_the_steps(when: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[None] = []
    steps = Time.to_steps
    monkeypatch.setattr(Time, "to_steps", lambda self, clock: calls.append(None) or steps(self, clock))
    remarks((EXCHANGE, f"exchange = {{ start = 5, every = 5, when = '{when}' }}"), clock=Clock(20, 100))
    assert len(calls) <= 10 * 2000


DECAY = ("decay = 0.8", "decay = 0.99")
AVERAGE = ("lr = 0.05", "lr = 0.05\naverage = 0.99")


def test_averages_that_do_not_shrink_with_a_run_are_noticed_with_both_shares():
    short = recipe(PAIR, DECAY, AVERAGE)
    assert shortening_warnings(short, Clock(2, 100), full_epochs=50) == [
        "mix.decay, task.linf.average: a time constant of 100 steps does not shrink with the run; it is 2.0% "
        'of 50 epochs, but 50.0% of 2; use { kind = "time-constant", over = "2%" } to scale it with the run'
    ]


@pytest.mark.parametrize(
    "average", ["0.99", "{ kind = 'warmup', limit = 0.9 }", "{ kind = 'time-constant', over = 1 }"]
)
def test_averages_of_other_kinds_and_lengths_are_noticed_apart(average: str):
    short = recipe(PAIR, ("decay = 0.8", "decay = 0.95"), (AVERAGE[0], f"lr = 0.05\naverage = {average}"))
    first, second = shortening_warnings(short, Clock(2, 100), full_epochs=50)
    assert first.startswith("mix.decay: a time constant of 20 steps ")
    assert second.startswith("task.linf.average: a time constant of ")


def test_averages_that_scale_and_runs_that_are_not_shortened_get_no_warning():
    assert shortening_warnings(recipe(PAIR, DECAY), Clock(50, 100), full_epochs=50) == []
    assert shortening_warnings(recipe(PAIR, DECAY), Clock(60, 100), full_epochs=50) == []
    assert shortening_warnings(recipe(SOLO), Clock(2, 100), full_epochs=50) == []
    scaling = ("decay = 0.8", "decay = { kind = 'time-constant', over = '2%' }")
    assert shortening_warnings(recipe(PAIR, scaling), Clock(2, 100), full_epochs=50) == []


def test_attack_steps_in_pixel_values_are_noticed():
    (remark,) = remarks(
        ('attack = { kind = "pgd", steps = 2 } }\nlr', 'attack = { kind = "pgd", step = "2/255" } }\nlr')
    )
    assert remark == (
        "the attack of linf moves at most 0.0784 budgets: 10 steps of 0.00784; step is a fraction of the "
        "budget, such as 0.25, not a pixel value"
    )


@pytest.mark.parametrize("when", ["epoch-end", "every-step"])
def test_only_the_first_exchanges_of_a_very_long_run_are_examined(when: str):
    sets = [
        ("curve = 0.6", "curve = 1"),
        (EXCHANGE, f"exchange = {{ start = 0, every = 1, when = '{when}' }}"),
    ]
    text = answer(lambda: remarks(*sets, clock=Clock(10**9, 400)))
    assert "100000 of the first 100000 exchanges happen while the share of linf is 1" in text


def test_the_first_exchange_of_a_very_long_run_is_found():
    late = "exchange = { start = '99%', every = '50%' }"
    assert answer(lambda: remarks((EXCHANGE, late), clock=Clock(10**9, 400))) == "[]"


def test_a_first_outer_step_that_comes_late_is_noticed():
    outer = ("decay = 0.8", 'rule = { kind = "outer", lr = 0.5, momentum = 0.8 }')
    assert remarks(outer) == []
    assert remarks(outer, (EXCHANGE, "exchange = { start = 5, every = 1 }")) == [
        "the first exchange follows step 50, and the rule outer then moves 0.9 times the way from the "
        "initial weights to the mixture; start exchanges earlier, for example at 0"
    ]


def test_a_soft_exchange_overwrites_no_learner():
    curve, soft = ("curve = 0.6", LINEAR), (EXCHANGE, "exchange = { start = 5, every = 5, strength = 0.5 }")
    assert remarks(curve, soft) == []


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ([], True),
        (["task.linf.objective.threat='Linf:0.1'"], False),
        (["task.linf.objective.threat='L2:2'"], False),
        (["task.linf.objective.forward='joint'"], False),
        (["task.linf.objective.beta=1"], False),
        (["mix={ decay = 0, buffers = 'recalibrate-adversarial' }"], False),
    ],
)
def test_separate_passes_under_a_large_budget_are_noticed(settings: list[str], warned: bool):
    warnings = warnings_for(Recipe.load("small/mnist-half-half", settings), CLOCK)
    assert [text for text in warnings if 'forward = "joint"' in text and "Linf:0.3" in text] == (
        warnings if warned else []
    )
    assert len(warnings) == warned
