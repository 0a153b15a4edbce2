"""curriculum: a training attacks with one attack first, and with another later."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.attacks import Attack, Curriculum, Msd, PerNorm, Pgd, RandomOf, Restarts, WorstOf, perturb
from allrounder.config.fields import adapter
from allrounder.config.phases import find_phases
from allrounder.config.time import Clock, Time
from allrounder.objectives import Adversarial, Average, HalfHalf, Objective, RandomTask, Taught, Teacher
from allrounder.recipe.lint import warnings_for
from allrounder.recipe.recipe import Recipe, Validation
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.training.planning import refine_plan
from allrounder.types import Passes
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import SOLO, EndsAfter, go, recipe, remains

LINF, L2 = Threat.parse("Linf:0.1"), Threat.parse("L2:0.5")
UNION = AnyOf((LINF, L2))
SHORT, LONG = Pgd(steps=3, step=0.5), Pgd(steps=10)


def curriculum(at: object = "75%", first: Attack = SHORT, then: Attack = LONG) -> Curriculum:
    return Curriculum(first=first, then=then, at=Time.parse(at))


def solo(objective: Objective, epochs: int) -> Recipe:
    plain = recipe(SOLO)
    return replace(plain, tasks=(replace(plain.tasks[0], objective=objective),), epochs=epochs)


def half_half(attack: Attack) -> HalfHalf:
    return HalfHalf(threat=LINF, attack=attack)


@pytest.mark.parametrize(("at", "epochs", "change"), [("75%", 8, 6), ("50%", 5, Fraction(5, 2)), (3, 8, 3)])
def test_the_first_attack_ends_at_the_given_time(at: object, epochs: int, change: object):
    assert find_phases(curriculum(at), epochs) == ((0, SHORT), (change, LONG))


def test_several_changes_follow_in_order():
    inner = curriculum("25%", first=Pgd(steps=1), then=SHORT)
    attack = curriculum("75%", first=inner)
    assert find_phases(attack, 4) == ((0, Pgd(steps=1)), (1, SHORT), (3, LONG))


@pytest.mark.parametrize(
    "contain",
    [
        lambda attack: RandomOf(attack=attack),
        lambda attack: WorstOf(attack=attack),
        lambda attack: Restarts(attack=attack, count=2),
        lambda attack: PerNorm(linf=LONG, l2=attack),
        lambda attack: Adversarial(threat=LINF, attack=attack),
        lambda attack: Average(against=(LINF, L2), attack=attack),
        lambda attack: RandomTask(threat=UNION, attack=RandomOf(attack=attack)),
        lambda attack: Taught(base=half_half(attack), natural=Teacher(teacher="natural")),
    ],
)
def test_attacks_and_objectives_that_contain_it_change_with_it(contain: Any):
    expected = ((0, contain(SHORT)), (3, contain(LONG)))
    assert find_phases(contain(curriculum()), 4) == expected


def test_a_value_without_a_curriculum_has_one_phase_and_stays_the_same_object():
    objective = HalfHalf(threat=LINF)
    ((start, value),) = find_phases(objective, 4)
    assert start == 0 and value is objective


def test_outside_a_training_it_is_the_last_attack():
    with Rng(0).seed_global():
        model: nn.Module = Tiny().eval()
    index = torch.arange(12)
    x, y = blobs().train.fetch(index), blobs().train.labels[index]
    results = [perturb(attack, model, x, y, LINF, Rng(1)) for attack in (curriculum(), LONG)]
    assert torch.equal(results[0].x, results[1].x)
    assert results[0].passes == results[1].passes == curriculum().passes()


def epoch_losses(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "epoch"]


def test_a_training_uses_the_first_attack_until_then_and_the_other_afterwards(tmp_path: Path):
    """In epoch 1 the losses are those of a training with the first attack, in epoch 2 no longer."""
    attacks = {"short": SHORT, "long": LONG, "both": curriculum("50%")}
    losses: dict[str, list[float]] = {}
    for name, attack in attacks.items():
        go(solo(half_half(attack), epochs=2), tmp_path / name)
        losses[name] = epoch_losses(tmp_path / name)
    assert losses["both"][0] == losses["short"][0] != losses["long"][0]
    assert losses["both"][1] not in (losses["short"][1], losses["long"][1])


def test_a_change_inside_an_epoch_counts_steps(tmp_path: Path):
    """Of three steps, 30% and a third of the run are nearest to one step, 60% to two."""
    for name, at in (("early", "30%"), ("third", "100/3%"), ("later", "60%")):
        go(solo(half_half(curriculum(at)), epochs=1), tmp_path / name)
    early, third, later = (epoch_losses(tmp_path / name) for name in ("early", "third", "later"))
    assert early == third != later


@pytest.mark.parametrize(
    ("objective", "epochs", "total"),
    [
        (Adversarial(threat=LINF, attack=curriculum("75%")), 4, Passes(3 * 4 + 11, 3 * 4 + 11)),
        (HalfHalf(threat=LINF, attack=curriculum("50%")), 4, Passes(2 * 5 + 2 * 12, 2 * 5 + 2 * 12)),
        # 3 steps for 0.8 of a batch, and one pass: 3.4; 15 epochs are 11.25 of these, and 3.75 of 9.
        (
            RandomTask(threat=UNION, natural_share=0.2, attack=RandomOf(attack=curriculum())),
            15,
            Passes(72, 72),
        ),
    ],
)
def test_the_cost_of_a_run_counts_each_attack_for_its_time(objective: Objective, epochs: int, total: Passes):
    assert solo(objective, epochs).total_passes() == total


def test_a_part_of_a_batch_is_counted_as_a_fraction():
    objective = RandomTask(threat=LINF, natural_share=0.2, attack=SHORT)
    assert objective.passes() == Passes(Fraction(17, 5), Fraction(17, 5))
    assert str(objective.passes()) == "3.4/3.4"
    assert str(Passes(Fraction(4, 2), 11)) == "2/11"


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_plan_measures_steps_of_both_parts(epochs: int, monkeypatch: pytest.MonkeyPatch):
    steps: list[int] = []
    run = Pgd.run

    def record(self: Pgd, *args: Any) -> Any:
        steps.append(self.steps)
        return run(self, *args)

    monkeypatch.setattr(Pgd, "run", record)
    value = solo(half_half(curriculum("50%")), epochs)
    (cost,) = list(refine_plan(value, steps=1, model=tiny, data=blobs()))[-1].learners
    assert steps.count(SHORT.steps) == steps.count(LONG.steps) == 2  # one to warm up, one to measure
    assert cost.passes == Passes(Fraction(17, 2), Fraction(17, 2)) and cost.measured


def test_ranks_are_placed_by_the_mean_passes():
    value = solo(half_half(curriculum("50%")), epochs=2)
    assert value.passes() == value.tasks[0].mean_passes(2) == Passes(Fraction(17, 2), Fraction(17, 2))


def test_resuming_across_the_change_gives_the_same_bits(tmp_path: Path):
    """Interrupted before the change, and once more after it, inside epochs."""
    value = solo(half_half(curriculum("50%")), epochs=3)
    go(value, tmp_path / "whole")
    for number, last in enumerate((3, 6)):
        with pytest.raises(KeyError):
            go(value, tmp_path / "parts", resume=number > 0, progress=EndsAfter(last))
    go(value, tmp_path / "parts", resume=True)
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")


@pytest.mark.parametrize(
    "attack",
    [
        curriculum(2),
        curriculum("100%"),
        curriculum(5),
        curriculum("50%", first=curriculum("75%")),
        curriculum("50%", first=LONG),
    ],
)
def test_an_attack_that_is_never_used_is_refused(attack: Curriculum):
    with pytest.raises(ValidationError, match=r"one of its attacks is never used in 2 epochs"):
        solo(half_half(attack), epochs=2)


def test_the_same_time_in_several_places_is_one_change():
    attack = PerNorm(linf=curriculum("50%"), l2=curriculum(1))
    value = solo(Average(against=(LINF, L2), attack=attack), epochs=2)
    assert [start for start, _ in find_phases(value.tasks[0].objective, 2)] == [0, 1]


def test_validation_refuses_an_attack_that_changes():
    with pytest.raises(ValidationError, match="the attack of validation stays the same"):
        Validation(attack=curriculum())


def test_a_warning_finds_steps_in_pixels_inside_it():
    value = solo(half_half(curriculum("50%", first=Pgd(steps=3, step=0.0078))), epochs=2)
    (warning,) = warnings_for(value, Clock(2, 3))
    assert "moves at most 0.0234 budgets" in warning


def test_attacks_on_unions_may_follow_each_other():
    both = curriculum(first=RandomOf(attack=SHORT), then=Msd(steps=4))
    with pytest.raises(ValueError, match="takes several threats itself"):
        RandomOf(attack=both)
    with pytest.raises(ValueError, match="only one of them takes several threats"):
        curriculum(first=RandomOf(attack=SHORT))
    objective = Adversarial(threat=UNION, attack=both)
    assert [type(part.attack) for _, part in find_phases(objective, 4)] == [RandomOf, Msd]
    with pytest.raises(ValueError, match="searches one ball, got the union"):
        Adversarial(threat=UNION, attack=curriculum())


def test_a_task_of_a_recipe_writes_it_as_a_table():
    table = {
        "kind": "curriculum",
        "at": "75%",
        "first": {"kind": "pgd", "steps": 3, "step": 0.5},
        "then": "pgd",
    }
    raw = {
        "name": "linf",
        "lr": 0.1,
        "objective": {"kind": "half-half", "threat": "Linf:0.1", "attack": table},
    }
    task = adapter(Task).validate_python(raw)
    assert task.objective == HalfHalf(threat=LINF, attack=curriculum())
