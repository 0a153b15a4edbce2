"""What every shipped study owes, whoever adds it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch

from allrounder.data.base import Data, Subset
from allrounder.data.batches import Batches
from allrounder.experiments.study import Study, Trial, shipped_studies
from allrounder.objectives import Adversarial
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.data import load_data, train_val_split
from allrounder.training.train import train

NAMES = list(shipped_studies())
ABLATIONS = [
    *("shares", "trends", "second-share", "period", "averaging", "optimizers", "rates", "transfer"),
    *("exchange-when", "start", "momentum", "buffers"),
]
EMBEDDED = [f"embedded/{name}" for name in ABLATIONS]
MISPRINTED = {
    ("cifar10/plus-table1-resnet18", "AGR"),
    ("cifar100/plus-table2-resnet18", "Generalist-D Linf+L2"),
    ("imagenet/plus-table3-wrn", "Generalist-D Linf+L2"),
}
"""Where the paper's Union is not the mean of the two columns that it is defined by."""
SHIFT_COLUMNS = {"corruptions severity 5 (official)", "perturbations all frames (official)"}


@cache
def study(name: str) -> Study:
    return Study.load(name)


@cache
def trials(name: str) -> list[Trial]:
    return study(name).trials()


def recipes(name: str) -> dict[str, Recipe]:
    """By label, with the first seed."""
    first = study(name).seeds[0]
    return {trial.label: trial.recipe for trial in trials(name) if trial.seed == first}


@pytest.mark.parametrize("name", NAMES)
def test_its_description_is_one_line(name: str):
    about = study(name).about
    assert about.strip() == about != ""
    assert "\n" not in about
    assert len(about) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_and_read_again(name: str):
    assert study(name).name == name
    assert Study.loads(study(name).dumps()) == study(name)


@pytest.mark.parametrize("name", NAMES)
def test_all_its_trainings_are_read_and_no_two_are_the_same(name: str):
    found = trials(name)
    rows = [label for trial in found for label in trial.rows]
    assert sorted(rows) == sorted(study(name).labels() * len(study(name).seeds))
    assert len({trial.recipe.fingerprint() for trial in found}) == len(found)
    assert len({trial.folder for trial in found}) == len(found)


@pytest.mark.parametrize("name", NAMES)
def test_all_its_trainings_are_evaluated_within_the_budgets_of_their_data(name: str):
    for trial in trials(name):
        asked = {str(probe.threat) for probe in trial.recipe.probes}
        attacked = [t.objective for t in trial.recipe.tasks if isinstance(t.objective, Adversarial)]
        own = {str(threat) for objective in attacked for threat in objective.threats()}
        assert asked and (not own or asked & own)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_numbers_stand_in_columns_of_its_table(name: str):
    told, by_label = study(name).paper_results(), recipes(name)
    assert bool(told) == bool(study(name).source)
    assert len(told) == len(
        [p for axis in study(name).axis for p in axis.point if p.paper]
        + [p for p in study(name).row if p.paper]
    )
    for label, numbers in told.items():
        probes = by_label[label].probes
        several = {p.name for p in probes if sum(q.name == p.name for q in probes) > 1}
        known = {"natural", *map(str, probes), *(f"{a} {how}" for a in several for how in ("worst", "mean"))}
        known |= SHIFT_COLUMNS if study(name).ood else set()
        assert numbers.keys() <= known
        assert all(0 <= number <= 100 for number in numbers.values())
        assert all(number <= numbers.get("natural", 100) for number in numbers.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_union_is_the_mean_of_their_columns(name: str):
    """So that a number read wrongly shows."""
    for label, numbers in study(name).paper_results().items():
        if "aa mean" in numbers:
            columns = [number for column, number in numbers.items() if column.startswith("aa@")]
            assert len(columns) == 2
            wrong = abs(sum(columns) / 2 - numbers["aa mean"]) > 0.0051
            assert wrong == ((name, label) in MISPRINTED)


def test_every_ablation_has_a_small_form():
    assert {f"{folder}/{name}" for folder in ("cifar10", "embedded") for name in ABLATIONS} <= set(NAMES)
    assert {name for name in NAMES if name.startswith("embedded/")} == {
        *EMBEDDED,
        "embedded/demo",
        "embedded/fast-conv",
        "embedded/methods",
    }


def test_the_small_forms_are_small():
    found = [trial for name in EMBEDDED for trial in trials(name)]
    assert len(found) <= 130
    assert max(trial.recipe.epochs for trial in found) == 4
    for name in EMBEDDED:
        assert (study(name).seeds, study(name).images) == ((0, 1), 300)
        assert len(study(name).labels()) <= 6


def test_the_demonstration_is_a_study():
    demo = study("embedded/demo")
    labels = [
        "NT",
        "AT Linf",
        "half-half, averaged",
        "AVG Linf+L2, averaged",
        "random-task Linf+L2, averaged",
        "Generalist-D NT+Linf",
        "Generalist-T",
    ]
    assert demo.labels() == labels and demo.images == 128
    assert all(trial.recipe.epochs == 12 for trial in trials("embedded/demo"))
    averaged = [trial for trial in trials("embedded/demo") if "averaged" in trial.label]
    assert averaged and all(task.average is not None for trial in averaged for task in trial.recipe.tasks)


@pytest.mark.parametrize("name", NAMES)
def test_autoattack_judges_every_threat_of_a_study(name: str):
    for trial in trials(name):
        probes = trial.recipe.probes
        judged = {str(probe.threat) for probe in probes if probe.name == "aa"}
        assert judged == {str(probe.threat) for probe in probes}, trial.label


@pytest.fixture(scope="module")
def few() -> Data:
    """One batch of training images, some to hold out, some to test."""
    whole = load_data(Recipe.load("embedded/nt"))
    train_, test = (Subset(split, torch.arange(20)) for split in (whole.train, whole.test))
    return Data(whole.name, train_, test, whole.classes)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_small_form_trains_a_step(name: str, few: Data, tmp_path: Path):
    """The last of its rows, which is the farthest from the recipe."""
    sets = ["epochs=1", "batch_size=10", "model.width=2", "validation.images=10", "validation.every=1"]
    sets += ["validation.attack={ kind = 'pgd', steps = 1 }"]
    asked = trials(name)[-1].recipe
    sets += [
        f"task.{task.name}.objective.attack.steps=2"
        for task in asked.tasks
        if isinstance(task.objective, Adversarial)
    ]
    file = tmp_path / "asked.toml"
    file.write_text(asked.dumps(), encoding="utf-8")
    recipe = Recipe.load(file, sets)
    run = train(recipe, tmp_path / "run", data=few)
    assert run.finished
    assert Batches(train_val_split(recipe, few)[0], recipe.batch_size, Rng(recipe.seed)).steps == 1
    losses = {event["learner"]: event["loss"] for event in run.metrics() if event["event"] == "epoch"}
    assert losses.keys() == set(recipe.names)
    assert all(math.isfinite(loss) for loss in losses.values())
    theta, facts = run.weights()
    assert facts["t"] == 1
    assert all(bool(tensor.isfinite().all()) for tensor in theta.values() if tensor.is_floating_point())
