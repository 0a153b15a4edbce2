"""A plan is measured on real steps, its sums are right, and nothing is left of it."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from allrounder.attacks import Apgd, AutoAttack, Fab, Pgd, Square
from allrounder.cli.display import format_bytes
from allrounder.cli.run_train import describe_estimate, describe_plan, run_plan
from allrounder.config.fields import adapter
from allrounder.data import DATASETS
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.data.synthetic import DATASET_SHAPES, synthetic_data
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.memory import measure_peak_memory
from allrounder.system.progress_bar import format_duration
from allrounder.system.tensor_folders import read_tensors
from allrounder.threats.threat import Threat
from allrounder.training import disk_space, planning
from allrounder.training.pass_times import PassTimes, SuiteCost, count_flops
from allrounder.training.planning import LearnerCost, Plan, load_images_or_noise, plan, refine_plan
from allrounder.types import Passes
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import PAIR, SOLO, go, recipe

LINF = Threat.parse("Linf:0.1")
HELD = {"weights": 100, "momentum": 80, "average": 0, "memory": 4, "mix state": 100}
COST = LearnerCost("linf", Passes(11, 11), 0.5, HELD)
NATURAL_COST = LearnerCost("natural", Passes(1, 1), 0.25, HELD | {"average": 100})
PLAN = Plan(
    steps_per_epoch=10,
    epochs=3,
    learners=(COST, NATURAL_COST),
    fetch_seconds=0.05,
    activations=1000,
    validation=SuiteCost(20, Passes(3, 2), 7.0),
    validations=2,
    checkpoint=2048,
    checkpoint_seconds=0.5,
    disk=4000,
    checkpoints=3,
    exchanges=1,
    evaluation=SuiteCost(50, Passes(30, 20), 3600.0),
    pass_times=PassTimes(batch_size=10, forward=1.0, backward=2.0, flops=2_000_000_000),
)


def test_a_plan_adds_up_its_parts():
    assert PLAN.step_seconds == pytest.approx(0.8)
    assert PLAN.epoch_seconds == pytest.approx(PLAN.step_seconds * PLAN.steps_per_epoch)
    assert PLAN.seconds == pytest.approx(3 * 8 + 2 * 7 + 3 * 0.5)
    assert PLAN.memory == 284 + 384 + 1000
    assert PLAN.comm_bytes == 200


def test_the_end_of_an_endless_plan_is_described():
    message = "\n".join(describe_plan(replace(PLAN, epochs=10**18), datetime(2030, 1, 1)))
    assert "started now, it would finish after the year 9999" in message


def test_describe_plan_lists_all_costs():
    message = "\n".join(describe_plan(replace(PLAN, remarks=("noise",)), datetime(2030, 1, 1, 12, 0, 0)))
    assert message.startswith(
        "note: noise\nlearner linf: 11/11 forward/backward passes per step, 500 ms per step"
    )
    assert (
        "holds 384 bytes: weights 100 bytes, momentum 80 bytes, average 100 bytes, memory 4 bytes" in message
    )
    assert "epoch: 8 s for 10 steps" in message
    assert "training: 39.5 s for 3 epochs, 2 validations of at most 7 s each, 3 checkpoints" in message
    assert "started now, it would finish at 2030-01-01 12:00" in message
    assert "checkpoint: 2.05 kB on disk, 500 ms to write; the run folder takes at least 4 kB" in message
    assert "200 bytes per exchange or validation, 1 exchanges and 2 validations" in message
    assert message.endswith("at most 1 h 00 min, 30/20 forward/backward passes per image, 50 images")


def test_a_plan_warns_of_a_training_that_does_not_fit_on_the_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("allrounder.cli.run_train.refine_plan", lambda *_, **__: (plan for plan in [PLAN]))
    monkeypatch.setattr(disk_space, "read_free_bytes", lambda folder: 4000)
    assert run_plan("embedded/nt", [], None) == 0
    assert "warning" not in capsys.readouterr().out, "it fits exactly"
    monkeypatch.setattr(disk_space, "read_free_bytes", lambda folder: 3999)
    assert run_plan("embedded/nt", [], None) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert "runs/embedded-nt-" in line and "will take 0.0 MB or more, and the disk has 0.0 MB" in line
    assert "so the training would not start; free some space, or name a folder on another disk" in line


def test_the_free_space_of_a_folder_that_does_not_exist_is_that_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[Path] = []

    def disk_usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(total=10, free=7)

    monkeypatch.setattr(disk_space.shutil, "disk_usage", disk_usage)
    assert disk_space.read_free_bytes(tmp_path / "runs" / "new") == 7
    assert asked == [tmp_path]


def test_an_estimate_says_how_fast_the_machine_is():
    network, estimate, _ = describe_estimate(PLAN)
    assert network == (
        "network: 2 GFLOP per image and forward pass; this machine computes 20 GFLOP/s on it"
    ), "three times 2 GFLOP for ten images in three seconds"
    assert estimate.startswith(
        "estimate: 39.5 s for 3 epochs, 30 steps (12/12 forward/backward passes per image"
    )


def test_describe_plan_leaves_out_what_was_not_measured():
    learners = (replace(COST, measured=False), NATURAL_COST)
    partial = replace(PLAN, learners=learners, activations=None, checkpoint=None)
    lines = list(describe_plan(partial, datetime(2030, 1, 1)))
    assert lines[0].endswith("500 ms per step (estimated)")
    assert sum(line.startswith("  holds") for line in lines) == 1
    assert not any(line.startswith(("memory", "checkpoint")) for line in lines)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0.0123, "12.3 ms"),
        (61.0, "61 s"),
        (600.0, "10 min"),
        (3600.0 * 30 + 300, "30 h 05 min"),
        (3600.0 * 100, "4 days"),
    ],
)
def test_format_duration_chooses_a_unit(seconds: float, message: str):
    assert format_duration(seconds) == message


@pytest.mark.parametrize(
    ("count", "message"), [(0, "0 bytes"), (1500, "1.5 kB"), (44_700_000, "44.7 MB"), (2_000_000_000, "2 GB")]
)
def test_format_bytes_chooses_a_unit(count: int, message: str):
    assert format_bytes(count) == message


def test_a_plan_measures_every_learner_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wanted = recipe(PAIR, ("lr = 0.05", "lr = 0.05\naverage = 0.9"))
    result = plan(wanted, steps=2, model=tiny, data=blobs(48))
    assert list(tmp_path.glob("allrounder*")) == []
    weights = sum(t.nbytes for t in Tiny().state_dict().values())
    trained = sum(p.nbytes for p in Tiny().parameters())
    linf, natural = result.learners
    assert (linf.name, natural.name) == wanted.names
    assert (linf.passes, natural.passes) == (Passes(3, 3), Passes(1, 1))
    held = {"weights": weights, "momentum": trained, "average": weights, "memory": 0, "mix state": weights}
    assert linf.held == held and natural.held == held | {"average": 0}
    assert result.comm_bytes == 2 * weights
    assert (
        result.steps_per_epoch,
        result.epochs,
        result.checkpoints,
        result.validations,
        result.exchanges,
    ) == (
        3,
        3,
        5,
        3,
        2,
    )
    assert result.validation.images == 12 + 6 and result.validation.passes == Passes(1 + 2 + 1, 2)
    assert min(linf.seconds, natural.seconds, result.fetch_seconds, result.checkpoint_seconds) > 0
    assert result.evaluation == SuiteCost(30, Passes(1), result.evaluation.seconds)
    assert result.remarks == ()


def test_the_counts_and_bytes_of_a_plan_are_those_of_the_run(tmp_path: Path):
    wanted = recipe(PAIR)
    result, run = plan(wanted, steps=1, model=tiny, data=blobs(48)), go(wanted, tmp_path / "run")
    point = run.latest_checkpoint()
    assert point is not None
    tensors = sum(t.nbytes for name in wanted.names for t in read_tensors(point, name).values())
    assert tensors == sum(cost.bytes for cost in result.learners)
    real = sum(path.stat().st_size for path in point.iterdir())
    assert abs((result.checkpoint or 0) - real) < 500, "but for the digits in a manifest"
    kept = sum(disk_space.count_file_bytes(run.folder / name) for name in ("checkpoints", "weights"))
    assert 0.3 * kept < result.disk < 1.5 * kept, "two checkpoints at once, or one with the weights"
    assert sum(event["event"] == "validation" for event in run.metrics()) == result.validations


def test_a_plan_counts_the_passes_of_the_overfitting_guard(monkeypatch: pytest.MonkeyPatch):
    times = PassTimes(batch_size=10, forward=1.0, backward=2.0)
    monkeypatch.setattr(PassTimes, "measure", lambda *_: times)
    guard = "update = { kind = 'overfit-guard', probe = { kind = 'pgd', steps = 5 } }"
    guarded = recipe(PAIR, ("lr = 0.05", f"lr = 0.05\n{guard}"))
    costs = plan(guarded, steps=1, model=tiny, data=blobs(48))
    linf, natural = costs.learners
    assert linf.epoch_end_seconds == 2 * (6 * 1.0 + 5 * 2.0), "a batch of 16 takes two passes of ten images"
    assert natural.epoch_end_seconds == 0
    steps = costs.step_seconds * costs.steps_per_epoch
    assert costs.epoch_seconds == pytest.approx(steps + linf.epoch_end_seconds)


def test_a_plan_becomes_better_step_by_step(monkeypatch: pytest.MonkeyPatch):
    times = PassTimes(batch_size=16, forward=0.01, backward=0.02)
    monkeypatch.setattr(PassTimes, "measure", lambda *_: times)
    estimate, *others = refine_plan(recipe(PAIR), steps=1, model=tiny, data=blobs(48))
    assert [learner.seconds for learner in estimate.learners] == pytest.approx([0.09, 0.03])
    assert not any(learner.measured for learner in estimate.learners)
    assert estimate.memory is None and estimate.checkpoint is None
    first, *_, last = others
    assert len(others) == 2 * 2 + 1, "two steps of two learners, and the checkpoint"
    assert [learner.measured for learner in first.learners] == [True, False]
    assert first.learners[1].seconds == estimate.learners[1].seconds
    assert last.memory is not None and last.checkpoint
    assert last.learners[0].held["momentum"] > estimate.learners[0].held["momentum"] == 0
    assert last.validations == estimate.validations and last.exchanges == estimate.exchanges


@pytest.mark.parametrize(("slow", "num_steps"), [(0.0, 1), (1000.0, 4)])
def test_slow_steps_are_measured_once(monkeypatch: pytest.MonkeyPatch, slow: float, num_steps: int):
    monkeypatch.setattr(planning, "SLOW_STEP", slow)
    assert len(list(refine_plan(recipe(SOLO), model=tiny, data=blobs(48)))) == 1 + num_steps + 1


def test_passes_are_measured_on_batches_that_grow(monkeypatch: pytest.MonkeyPatch):
    fast = PassTimes.measure(Tiny(), blobs(48).test)
    assert fast.batch_size > 8 and fast.forward > 0 and fast.rate > 0
    monkeypatch.setattr("allrounder.training.pass_times.MAX_PASS_SECONDS", 0.0)
    assert PassTimes.measure(Tiny(), blobs(48).test).batch_size == 8


def test_flops_are_those_of_the_convolutions_and_products():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(256, 3)
    )
    assert count_flops(network, torch.zeros(1, 1, 8, 8)) == 2 * (64 * 4 * 9 + 256 * 3)


def test_an_interrupted_plan_prints_what_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(*arguments: object, **settings: object) -> Iterator[Plan]:
        yield replace(PLAN, learners=(COST, replace(NATURAL_COST, measured=False)), activations=None)
        raise KeyboardInterrupt

    monkeypatch.setattr("allrounder.cli.run_train.refine_plan", interrupt)
    assert run_plan("embedded/nt", [], None) == 130
    shown = capsys.readouterr().out
    assert "estimate: 39.5 s" in shown
    assert "interrupted; only steps of linf were measured:\nlearner linf: 11/11" in shown
    assert "training: 39.5 s for 3 epochs" in shown


def test_a_plan_may_measure_more_steps_than_the_run_has():
    short = recipe(SOLO, ("epochs = 3", "epochs = 1"))
    assert plan(short, steps=7, model=tiny, data=blobs(48)).steps_per_epoch == 3
    with pytest.raises(ValueError, match="steps: got 0, expected 1 or more"):
        plan(short, steps=0, model=tiny, data=blobs(48))


def test_a_recipe_that_starts_from_a_missing_run_can_be_planned():
    wanted = recipe(SOLO, ("epochs = 3", 'epochs = 3\ninit = { kind = "run", run = "gone" }'))
    assert plan(wanted, steps=1, model=tiny, data=blobs(48)).learners[0].seconds > 0


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
    ids=lambda item: str(item) if isinstance(item, Passes) else type(item).__name__,
)
def test_evaluation_passes_are_the_maximum_of_an_attack(attack: Pgd, passes: Passes):
    assert attack.evaluation_passes(10) == passes


@pytest.mark.parametrize(
    "attack", [Apgd(steps=5), Fab(targets=0, steps=3), Fab(targets=2, steps=3), Square(queries=9)], ids=str
)
def test_an_attack_without_success_takes_its_maximum_of_passes(attack: Apgd):
    """Alone it asks for the natural answer, in an evaluation for a verdict: one forward either way."""

    def sure(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] * 0.01 + torch.tensor([9.0, 0.0, 0.0])

    x = torch.full((2, 1, 8, 8), 0.5)
    result = attack.run(sure, x, torch.zeros(2, dtype=torch.int64), LINF, Rng(0))
    assert result.passes == attack.evaluation_passes(3)


def test_a_stage_that_probes_share_is_counted_once():
    speed = PassTimes(batch_size=10, forward=1.0, backward=2.0)
    whole, part = Probe.of("aa", LINF), Probe.of("apgd-ce", LINF)
    both = speed.suite_cost([whole, part], 25, 10)
    assert both == speed.suite_cost([whole], 25, 10)
    most = sum((stage.evaluation_passes(10) for stage in AutoAttack().stages(LINF.norm)), Passes(1))
    assert both.passes == most
    assert both.seconds == 3 * (most.forwards + 2.0 * most.backwards), "three passes, the last not full"


def test_missing_published_data_is_replaced_by_noise_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    wanted = replace(Recipe.load("cifar100/at-linf"), batch_size=2)
    data, message = load_images_or_noise(wanted, None)
    assert (data.shape, len(data.classes), len(data.train), len(data.test)) == (
        (3, 32, 32),
        100,
        50_000,
        10_000,
    )
    assert len(message) == 1 and message[0].startswith(
        "measured on noise of shape (3, 32, 32), because data: "
    )
    assert data.train.fetch(torch.tensor([3, 67, 4])).unique(dim=0).shape[0] == 2


@pytest.mark.parametrize(
    "kind", [name for name, cls in DATASETS.items() if cls in DATASET_SHAPES or name == "imagenet"]
)
def test_synthetic_data_is_a_valid_dataset(kind: str):
    result = synthetic_data(adapter(DATASETS[kind]).validate_python({}))
    assert result is not None and result.name == kind
    x = result.test.fetch(torch.arange(5))
    assert x.shape[1:] == result.shape and float(x.min()) >= 0 and float(x.max()) <= 1
    assert int(result.train.labels.max()) == len(result.classes) - 1


def test_missing_data_of_unknown_shape_raises(tmp_path: Path):
    missing = f'data={{ kind = "npz", path = "{tmp_path / "no.npz"}" }}'
    with pytest.raises(RecipeError, match=r"no\.npz"):
        plan(Recipe.load("embedded/nt", [missing]), steps=1)


def test_peak_memory_includes_memory_that_was_freed():
    with measure_peak_memory(torch.device("cpu")) as grown:
        held: list[torch.Tensor] = []
        # The allocator may first hand out memory that earlier tests freed, which does not grow the process.
        while grown[0] < 60e6 and len(held) < 25:
            held.append(torch.ones(20_000_000))
            time.sleep(0.05)  # the watcher may wait for its turn
        del held
    assert 60e6 < grown[0] < 400e6


def test_an_interrupted_plan_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
