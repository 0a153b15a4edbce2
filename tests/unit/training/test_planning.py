"""A plan is measured on real steps, its sums are right, and nothing is left of it."""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from allrounder.attacks import Apgd, AutoAttack, Fab, Pgd, Square
from allrounder.cli.display import format_bytes, format_duration
from allrounder.cli.run_train import describe_plan
from allrounder.config.fields import adapter
from allrounder.data import DATASETS
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.data.synthetic import DATASET_SHAPES, synthetic_data
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.memory import measure_peak_memory
from allrounder.system.tensor_folders import read_tensors
from allrounder.threats.threat import Threat
from allrounder.training.planning import (
    LearnerCost,
    PassTimes,
    Plan,
    SuiteCost,
    _load_images,
    plan,
)
from allrounder.types import Passes
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import PAIR, SOLO, go, recipe

LINF = Threat.parse("Linf:0.1")
COST = LearnerCost("linf", Passes(11, 11), 0.5, 100, 80, 0, 4, 100)
PLAN = Plan(
    steps_per_epoch=10,
    epochs=3,
    learners=(COST, replace(COST, name="natural", passes=Passes(1, 1), seconds=0.25, average=100)),
    fetch_seconds=0.05,
    activations=1000,
    validation=SuiteCost(20, Passes(3, 2), 7.0),
    validations=2,
    checkpoint=2048,
    checkpoint_seconds=0.5,
    checkpoints=3,
    exchanges=1,
    evaluation=SuiteCost(50, Passes(30, 20), 3600.0),
)


def test_the_sums_of_a_plan():
    assert PLAN.step_seconds == pytest.approx(0.8)
    assert PLAN.epoch_seconds == pytest.approx(PLAN.step_seconds * PLAN.steps_per_epoch)
    assert PLAN.seconds == pytest.approx(3 * 8 + 2 * 7 + 3 * 0.5)
    assert PLAN.memory == 284 + 384 + 1000
    assert PLAN.comm_bytes == 200


def test_a_plan_in_words():
    said = "\n".join(describe_plan(replace(PLAN, remarks=("noise",)), datetime(2030, 1, 1, 12, 0, 0)))
    assert said.startswith(
        "note: noise\nlearner linf: 11/11 forward/backward passes per step, 500 ms per step"
    )
    assert "holds 384 bytes: weights 100 bytes, momentum 80 bytes, average 100 bytes, memory 4 bytes" in said
    assert "epoch: 8 s for 10 steps" in said
    assert "training: 39.5 s for 3 epochs, 2 validations of at most 7 s each, 3 checkpoints" in said
    assert "started now, it would finish at 2030-01-01 12:00" in said
    assert "checkpoint: 2.05 kB on disk" in said
    assert "200 bytes per exchange or validation, 1 exchanges and 2 validations" in said
    assert said.endswith("at most 1 h 00 min, 30/20 forward/backward passes per image, 50 images")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "12.3 ms"), (61.0, "61 s"), (600.0, "10 min"), (3600.0 * 30 + 300, "30 h 05 min")],
)
def test_durations_are_said_as_people_do(seconds: float, said: str):
    assert format_duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 bytes"), (1500, "1.5 kB"), (44_700_000, "44.7 MB"), (2_000_000_000, "2 GB")]
)
def test_sizes_are_said_as_people_do(count: int, said: str):
    assert format_bytes(count) == said


def test_a_plan_measures_every_learner_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = recipe(PAIR, ("lr = 0.05", "lr = 0.05\naverage = 0.9"))
    found = plan(asked, steps=2, model=tiny, data=blobs(48))
    assert list(tmp_path.glob("allrounder*")) == []
    weights = sum(t.nbytes for t in Tiny().state_dict().values())
    trained = sum(p.nbytes for p in Tiny().parameters())
    linf, natural = found.learners
    assert (linf.name, natural.name) == asked.names
    assert (linf.passes, natural.passes) == (Passes(3, 3), Passes(1, 1))
    assert (linf.weights, linf.momentum, linf.average, linf.mix_state) == (
        weights,
        trained,
        weights,
        weights,
    )
    assert natural.average == natural.memory == 0
    assert found.comm_bytes == 2 * weights
    assert (found.steps_per_epoch, found.epochs, found.checkpoints, found.validations, found.exchanges) == (
        3,
        3,
        5,
        3,
        2,
    )
    assert found.validation.images == 12 + 6 and found.validation.passes == Passes(1 + 2 + 1, 2)
    assert min(linf.seconds, natural.seconds, found.fetch_seconds, found.checkpoint_seconds) > 0
    assert found.evaluation == SuiteCost(30, Passes(1), found.evaluation.seconds)
    assert found.remarks == ()


def test_the_counts_and_bytes_of_a_plan_are_those_of_the_run(tmp_path: Path):
    asked = recipe(PAIR)
    found, run = plan(asked, steps=1, model=tiny, data=blobs(48)), go(asked, tmp_path / "run")
    point = run.latest_checkpoint()
    assert point is not None
    tensors = sum(t.nbytes for name in asked.names for t in read_tensors(point, name).values())
    assert tensors == sum(cost.bytes for cost in found.learners)
    real = sum(path.stat().st_size for path in point.iterdir())
    assert abs(found.checkpoint - real) < 500, "but for the digits in a manifest"
    assert sum(event["event"] == "validation" for event in run.metrics()) == found.validations


def test_steps_beyond_the_end_of_a_short_run_begin_again():
    short = recipe(SOLO, ("epochs = 3", "epochs = 1"))
    assert plan(short, steps=7, model=tiny, data=blobs(48)).steps_per_epoch == 3
    with pytest.raises(ValueError, match="steps: got 0, expected 1 or more"):
        plan(short, steps=0, model=tiny, data=blobs(48))


def test_a_start_from_runs_that_are_gone_can_be_planned():
    asked = recipe(SOLO, ("epochs = 3", 'epochs = 3\ninit = { kind = "run", run = "gone" }'))
    assert plan(asked, steps=1, model=tiny, data=blobs(48)).learners[0].seconds > 0


@pytest.mark.parametrize(
    ("attack", "passes"),
    [
        (Pgd(steps=20), Passes(21, 20)),
        (Apgd(steps=100), Passes(1 + 101, 101)),
        (Apgd(surrogate="dlr", targets=9, steps=100), Passes(1 + 9 * 101, 9 * 101)),
        (Apgd(steps=10, eot=4), Passes(1 + 44, 44)),
        (Fab(targets=9, steps=100), Passes(1 + 1800, 900)),
        (Fab(targets=0, steps=10), Passes(1 + 20, 90)),
        (Square(queries=5000), Passes(1 + 5001)),
    ],
    ids=lambda it: str(it) if isinstance(it, Passes) else type(it).__name__,
)
def test_passes_at_most(attack: Pgd, passes: Passes):
    assert attack.evaluation_passes(10) == passes


@pytest.mark.parametrize(
    "attack", [Apgd(steps=5), Fab(targets=0, steps=3), Fab(targets=2, steps=3), Square(queries=9)], ids=str
)
def test_a_search_that_breaks_nothing_takes_the_most(attack: Apgd):
    """Alone it asks for the natural answer, in an evaluation for a verdict: one forward either way."""

    def sure(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] * 0.01 + torch.tensor([9.0, 0.0, 0.0])

    x = torch.full((2, 1, 8, 8), 0.5)
    found = attack.run(sure, x, torch.zeros(2, dtype=torch.int64), LINF, Rng(0))
    assert found.passes == attack.evaluation_passes(3)


def test_a_stage_that_probes_share_is_counted_once():
    speed = PassTimes(batch_size=10, forward=1.0, backward=2.0)
    whole, part = Probe.of("aa", LINF), Probe.of("apgd-ce", LINF)
    both = speed.suite_cost([whole, part], 25, 10)
    assert both == speed.suite_cost([whole], 25, 10)
    most = sum((stage.evaluation_passes(10) for stage in AutoAttack().stages(LINF.norm)), Passes(1))
    assert both.passes == most
    assert both.seconds == 3 * (most.forwards + 2.0 * most.backwards), "three passes, the last not full"


def test_published_data_that_is_absent_is_replaced_by_noise_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    asked = replace(Recipe.load("cifar100/at-linf"), batch_size=2)
    data, said = _load_images(asked, None)
    assert (data.shape, len(data.classes), len(data.train), len(data.test)) == (
        (3, 32, 32),
        100,
        50_000,
        10_000,
    )
    assert len(said) == 1 and said[0].startswith("measured on noise of shape (3, 32, 32), because data: ")
    assert data.train.fetch(torch.tensor([3, 67, 4])).unique(dim=0).shape[0] == 2


@pytest.mark.parametrize(
    "kind", [name for name, cls in DATASETS.items() if cls in DATASET_SHAPES or name == "imagenet"]
)
def test_a_stand_in_is_a_dataset(kind: str):
    found = synthetic_data(adapter(DATASETS[kind]).validate_python({}))
    assert found is not None and found.name == kind
    x = found.test.fetch(torch.arange(5))
    assert x.shape[1:] == found.shape and float(x.min()) >= 0 and float(x.max()) <= 1
    assert int(found.train.labels.max()) == len(found.classes) - 1


def test_data_of_unknown_shape_that_is_absent_is_an_error(tmp_path: Path):
    missing = f'data={{ kind = "npz", path = "{tmp_path / "no.npz"}" }}'
    with pytest.raises(RecipeError, match=r"no\.npz"):
        plan(Recipe.load("embedded/nt", [missing]), steps=1)


def test_growth_sees_memory_that_is_free_again():
    with measure_peak_memory(torch.device("cpu")) as grown:
        held = torch.ones(20_000_000)
        until = time.monotonic() + 20
        while grown[0] < 60e6 and time.monotonic() < until:  # the watcher may wait for its turn
            held.add_(1)
        del held
    assert 60e6 < grown[0] < 400e6


def test_an_interrupted_plan_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Impatient:
        def begin(self, total: int, done: int) -> None: ...
        def step(self, t: int) -> None:
            assert list(tmp_path.glob("allrounder*")), "there is something to clear away"
            signal.raise_signal(signal.SIGINT)

        def log(self, text: str) -> None: ...

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        plan(recipe(SOLO), steps=1, model=tiny, data=blobs(48), progress=Impatient())
    assert list(tmp_path.glob("allrounder*")) == []
