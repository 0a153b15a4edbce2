"""Mixtures of a run's learners, and of several runs, after training."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch

from allrounder.attacks.base import AttackResult, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.data.base import Data, Split
from allrounder.errors import InputError, Interrupted, RunError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.dial import DIAL_FILE, Dial, dial
from allrounder.experiments.finished_runs import label_folders
from allrounder.experiments.mixtures import Mixtures, evaluate_mixtures
from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.mixture import mix_weights
from allrounder.nn.state import copy_, weights_of
from allrounder.system.checked_files import read_json
from allrounder.threats.threat import Threat
from allrounder.training import recalibration
from allrounder.training.mixer import recalibrate
from allrounder.training.recalibration import Crafting, Statistics, craft_batches
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.support.damage import flip
from tests.support.networks import Tiny, blobs, same, tiny
from tests.support.trainings import HEAD, LINF, PAIR, SOLO, EndsAfter, contents, go, recipe

DATA = blobs(48)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that no test may change: of two learners, and of one learner each."""
    folder = tmp_path_factory.mktemp("runs")
    go(recipe(PAIR), folder / "pair")
    go(recipe(SOLO), folder / "natural")
    go(recipe(HEAD + LINF), folder / "linf")
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def measure(*folders: Path, points: int = 3, **more: Any) -> Dial:
    return dial(*folders, points=points, model=tiny, data=DATA, **more)


def test_the_grid_holds_the_global_weights_and_each_learner_alone(runs: Path):
    result = measure(runs / "pair")
    assert [point.shares for point in result.points] == [
        {"global": 1.0},
        {"linf": 1.0},
        {"linf": 0.5, "natural": 0.5},
        {"natural": 1.0},
    ]
    for point in result.points:
        assert list(point.robust) == ["Linf:0.1"] and point.robust["Linf:0.1"] == point.worst == point.mean
        assert 0 <= point.worst <= point.natural <= 1


def test_mixtures_are_those_of_the_saved_weights_with_new_statistics(runs: Path):
    mixtures = Mixtures.open([runs / "pair"], statistics="natural", model=tiny, data=DATA)
    run = Run(runs / "pair")
    for name in ("linf", "natural", "global"):
        assert same(mix_weights(mixtures.weights, {name: 1.0}), run.weights(name)[0])
    shares = {"linf": 0.25, "natural": 0.75}
    expected = Tiny()
    copy_(weights_of(expected), mix_weights(mixtures.weights, shares))
    mixed = mixtures.weights_at(shares)
    parameters = [name for name in mixed if "running" not in name]
    assert all(torch.equal(mixed[name], weights_of(expected)[name]) for name in parameters)
    assert not torch.equal(mixed["bn.running_mean"], weights_of(expected)["bn.running_mean"])
    train = mixtures.runs.data.train
    recalibrate_(expected, [train.fetch(torch.arange(len(train)))])
    torch.testing.assert_close(
        mixed["bn.running_mean"], weights_of(expected)["bn.running_mean"], rtol=0.1, atol=0.02
    )
    assert same(mixed, recalibrate(mix_weights(mixtures.weights, shares), Tiny(), train, 5, 16))


@pytest.mark.parametrize(("statistics", "period"), [("adversarial", 1), ("both", 2)])
def test_statistics_are_those_of_images_attacked_as_the_mixtures_are(
    runs: Path, statistics: Statistics, period: int
):
    natural, mixtures = (
        Mixtures.open([runs / "pair"], **ASKED, statistics=kind, model=tiny, data=DATA)
        for kind in ("natural", statistics)
    )
    shares = {"linf": 0.25, "natural": 0.75}
    expected, mixed = Tiny(), mixtures.weights_at(shares)
    copy_(weights_of(expected), natural.weights_at(shares))
    parameters = [name for name in mixed if "running" not in name]
    assert all(torch.equal(mixed[name], weights_of(expected)[name]) for name in parameters)
    assert not torch.allclose(mixed["bn.running_var"], weights_of(expected)["bn.running_var"], atol=1e-5)
    threats = Threat.parse("L2:0.5"), Threat.parse("Linf:0.05")
    crafting = Crafting(Pgd(steps=3), threats, 5, 16)
    assert mixtures.crafting == crafting
    batches = [*craft_batches(expected, mixtures.runs.data.train, crafting, period, lambda: None)]
    recalibrate_(expected, batches)
    assert same(mixed, weights_of(expected))


ASKED: dict[str, Any] = {"attack": "pgd-3", "threats": ["L2:0.5", "Linf:0.05"]}


def test_statistics_are_adversarial_unless_natural_ones_are_asked_for(runs: Path):
    default = Mixtures.open([runs / "pair"], model=tiny, data=DATA)
    assert default.statistics == "adversarial" and default.crafting.attack == Pgd(steps=2)
    shares = {"linf": 0.5, "natural": 0.5}
    by_kind = {kind: measure(runs / "pair", statistics=kind) for kind in get_args(Statistics)}
    weights = {kind: result.mixtures.weights_at(shares) for kind, result in by_kind.items()}
    assert same(weights["adversarial"], default.weights_at(shares))
    assert len({weights[kind]["bn.running_mean"].numpy().tobytes() for kind in weights}) == 3
    notes = {kind: result.table().notes[2] for kind, result in by_kind.items()}
    start = "Batch-norm statistics are re-estimated on 36"
    assert notes == {
        "natural": f"{start} natural training images at every point.",
        "adversarial": f"{start} adversarial training images at every point.",
        "both": f"{start} training images, half of them adversarial, at every point.",
    }
    with pytest.raises(InputError, match=r"statistics: got 'natrual', expected one of .*did you mean"):
        Mixtures.open([runs / "pair"], statistics=cast(Any, "natrual"))


def test_global_weights_with_adversarial_statistics_stay_as_they_are(runs: Path):
    folder = retrain(runs / "x", ("[mix]", "[mix]\nbuffers = 'recalibrate-adversarial'"), text=PAIR)
    mixtures = Mixtures.open([folder], model=tiny, data=DATA)
    assert same(mixtures.weights_at({"global": 1.0}), Run(folder).weights()[0])


@pytest.mark.slow
def test_the_attack_of_the_validation_crafts_for_a_search(runs: Path):
    result = measure(runs / "pair", attack="apgd-t", threats=["L2:0.5"], points=2, n=3)
    crafting = result.mixtures.crafting
    assert crafting.attack == Pgd(steps=2) and crafting.threats == (Threat.parse("L2:0.5"),)
    assert result.mixtures.plan["crafted_by"] == str(Pgd(steps=2))
    assert f"36 adversarial training images at every point; {Pgd(steps=2)} crafts them." in str(
        result.table().notes
    )
    only = '{ kind = "per-norm", linf = { kind = "pgd", steps = 2 } }\n'
    folder = retrain(runs / "x", ('{ kind = "pgd", steps = 2 }\n', only), text=PAIR)
    with pytest.raises(
        InputError, match=r"apgd-t cannot craft images.*validation.*choose natural statistics"
    ):
        measure(folder, attack="apgd-t", threats=["L2:0.5"])
    assert measure(folder, attack="apgd-t", threats=["L2:0.5"], statistics="natural", points=2, n=3).points


def test_only_held_out_images_are_measured(runs: Path):
    mixtures = Mixtures.open([runs / "pair"], model=tiny, data=DATA)
    held_out, train = mixtures.runs.held_out, mixtures.runs.data.train
    pixels = [
        {x.numpy().tobytes() for x in s.fetch(torch.arange(len(s)))} for s in (held_out, train, DATA.test)
    ]
    assert len(pixels[0]) == 12 and not pixels[0] & (pixels[1] | pixels[2])
    test = Untouchable(DATA.test)
    broken = Data(DATA.name, DATA.train, test, DATA.classes)
    test.is_closed = True
    dial(runs / "pair", points=2, model=tiny, data=broken)


class Untouchable:
    """A split whose images must not be read once it is closed."""

    def __init__(self, split: Split):
        self.split, self.labels = split, split.labels
        self.is_closed = False

    def __len__(self) -> int:
        return len(self.split)

    def fetch(self, index: torch.Tensor) -> torch.Tensor:
        assert not self.is_closed, "test images were read"
        return self.split.fetch(index)


def test_an_interrupted_dial_continues_with_equal_bytes(runs: Path):
    other = Path(shutil.copytree(runs / "pair", runs / "other" / "pair"))
    whole = measure(other)
    with pytest.raises(KeyError):
        measure(runs / "pair", progress=EndsAfter(3))
    (stored,) = (runs / "pair" / "dial" / "points").iterdir()
    assert len(read_json(stored, "")["points"]) == 3
    counted: list[int] = []
    again = measure(runs / "pair", progress=Counter(counted))
    assert counted == [1], "three of four points were measured before"
    assert again.points == whole.points
    assert contents(runs / "pair" / "dial") == contents(other / "dial")
    assert len(read_json(runs / "pair" / "dial" / DIAL_FILE, "")["points"]) == 4


class Counter:
    """Counts the points that are measured."""

    def __init__(self, counted: list[int]):
        self.counted = counted

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None: ...

    def log(self, text: str) -> None:
        self.counted.append(1)


def test_points_are_reused_only_for_the_same_question(runs: Path):
    counted: list[int] = []
    measure(runs / "pair")
    measure(runs / "pair", points=5, progress=Counter(counted))
    assert len(counted) == 2, "a finer grid contains the coarse one"
    measure(runs / "pair", n=6, progress=Counter(counted))
    measure(runs / "pair", attack="pgd-3", progress=Counter(counted))
    measure(runs / "pair", threats=["L2:0.5"], progress=Counter(counted))
    assert len(counted) == 2 + 3 * 4
    counted.clear()
    for statistics in ("adversarial", "natural", "both", "natural"):
        measure(runs / "pair", statistics=statistics, progress=Counter(counted))
    assert len(counted) == 2 * 4, "those of adversarial images are the default, and natural ones come twice"


def test_a_signal_stops_while_images_are_crafted(runs: Path, monkeypatch: pytest.MonkeyPatch):
    crafted: list[int] = []

    def strike(*words: Any) -> AttackResult:
        if not crafted:
            os.kill(os.getpid(), signal.SIGTERM)
        crafted.append(1)
        return perturb(*words)

    monkeypatch.setattr(recalibration, "perturb", strike)
    with pytest.raises(Interrupted, match="SIGTERM after 0 of 4 points; call again to continue"):
        measure(runs / "pair")
    assert len(crafted) == 1
    assert len(measure(runs / "pair").points) == 4


def test_a_damaged_store_is_reported(runs: Path):
    measure(runs / "pair")
    (stored,) = (runs / "pair" / "dial" / "points").iterdir()
    flip(stored)
    with pytest.raises(RunError, match=r"cannot be read.*remove it and call again"):
        measure(runs / "pair")


def test_an_exported_mixture_is_an_ordinary_finished_run(runs: Path):
    result = measure(runs / "pair", also=[{"linf": 0.2, "natural": 0.8}], attack="pgd-2")
    point = result.point_at({"natural": 0.8, "linf": 0.2})
    out = runs / "mixed"
    run = result.export(point, out)
    assert Run(out).finished and "linf 0.2, natural 0.8" in Run(out).recipe.about
    weights, facts = run.weights("best")
    assert same(weights, run.weights()[0]) and same(weights, result.mixtures.weights_at(point.shares))
    assert facts["mixture"] == {"linf": 0.2, "natural": 0.8} and facts["recalibrated_on"] == 36
    assert facts["statistics"] == "adversarial" and facts["crafted_by"] == str(Pgd(steps=2))
    (event,) = run.metrics()
    assert event["natural"] == point.natural and event["best"] and "finished" in str(run.summary().rows)
    network = load(out, "best", model=tiny)
    held_out = result.mixtures.runs.held_out
    options = EvalOptions(check="skip")
    outcome = evaluate(network, held_out, probes=["pgd-2@Linf:0.1"], seed=run.recipe.seed, options=options)
    assert (outcome.accuracy(), outcome.worst("pgd-2")) == (point.natural, point.worst)
    before = contents(out)
    train(run.recipe, out, model=tiny, data=DATA, resume=True)
    assert contents(out) == before, "a finished run is not trained"
    with pytest.raises(RunError, match="exists; choose another folder"):
        result.export(point, out)
    with pytest.raises(InputError, match=r"linf 0.3, natural 0.7 was not measured"):
        result.point_at({"linf": 0.3, "natural": 0.7})


def test_several_runs_are_mixed_by_their_global_weights(runs: Path):
    folders = runs / "natural", runs / "linf"
    result = measure(*folders)
    assert [point.name for point in result.points] == ["natural", "natural 0.5, linf 0.5", "linf"]
    assert result.mixtures.folder == runs / "natural" / "dial" / "natural-linf"
    alone = result.mixtures.weights
    assert all(same(alone[folder.name], Run(folder).weights()[0]) for folder in folders)
    run = result.export(result.points[1], runs / "soup")
    assert list(run.weights()[1]["sources"]) == ["natural", "linf"]


def test_folders_are_named_by_what_differs():
    assert list(label_folders(["runs/a/seed-0", "runs/b/seed-0"])) == ["a", "b"]
    assert list(label_folders(["runs/a/seed-0", "runs/b/seed-1"])) == ["seed-0", "seed-1"]
    assert list(label_folders(["a/x", "b/x", "b/y"])) == ["a/x", "b/x", "b/y"]
    assert list(label_folders(["runs/a"])) == ["a"]
    with pytest.raises(InputError, match="expected different run folders"):
        label_folders(["runs/a", "runs/../runs/a"])


def retrain(folder: Path, *sets: tuple[str, str], text: str = SOLO, **more: Any) -> Path:
    go(recipe(text, *sets), folder, **more)
    return folder


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: [f / "natural"], "has one learner only, natural; name other runs too"),
        (lambda f: [f / "nowhere"], "no such folder"),
        (lambda f: [unfinished(f)], "the training is not finished; continue with --resume"),
        (lambda f: [damaged(f)], "cannot be read.*changed after it was written"),
        (lambda f: [f / "linf", retrain(f / "x", ("seed = 5", "seed = 6"))], "held out different images"),
        (
            lambda f: [f / "linf", retrain(f / "x", data=Data("other", DATA.train, DATA.test, DATA.classes))],
            "x was trained on other, linf on blobs, expected the same data",
        ),
        (lambda f: [f / "linf", retrain(f / "x", model=lambda: Tiny(width=5))], "holds another network than"),
        (lambda f: [retrain(f / "x", ("images = 12", "images = 0"), text=PAIR)], "validation.images is 0"),
        (
            lambda f: [retrain(f / "x", ("images = 12", 'on = "test"'), text=PAIR)],
            "held out no training images, it selected its weights on the test set",
        ),
        (
            lambda f: [f / "natural", retrain(f / "x", ('["Linf:0.1"]', "[]"))],
            None,
        ),
    ],
)
def test_runs_that_cannot_be_mixed_are_explained(
    runs: Path, prepare: Callable[[Path], list[Path]], message: str | None
):
    folders = prepare(runs)
    if message is None:
        assert len(measure(*folders).points) == 3, "other threats of the validation are no obstacle"
        return
    with pytest.raises(RunError, match=message):
        measure(*folders)
    assert not any((folder / "dial").exists() for folder in folders)


def unfinished(folder: Path) -> Path:
    with pytest.raises(KeyError):
        go(recipe(PAIR), folder / "begun", progress=EndsAfter(4))
    return folder / "begun"


def damaged(folder: Path) -> Path:
    flip(next((folder / "pair" / "weights").glob("last-*/linf.safetensors")))
    return folder / "pair"


def test_shares_are_checked_before_anything_is_measured(runs: Path):
    with pytest.raises(InputError, match='did you mean "natural"'):
        measure(runs / "pair", also=[{"natrual": 1.0}])
    assert not (runs / "pair" / "dial").exists()


def test_a_run_without_threats_needs_one(runs: Path):
    folder = retrain(runs / "x", ('["Linf:0.1"]', "[]"))
    other = retrain(runs / "y", ('["Linf:0.1"]', "[]"), ("0.02", "0.01"))
    with pytest.raises(RunError, match="trained under no threat"):
        measure(folder, other)
    assert measure(folder, other, threats=["Linf:0.05"]).points[0].robust.keys() == {"Linf:0.05"}


def test_mixtures_can_be_measured_one_by_one(runs: Path):
    mixtures = Mixtures.open([runs / "pair"], model=tiny, data=DATA)
    (point,) = evaluate_mixtures(mixtures, [{"linf": 0.5, "natural": 0.5}])
    assert point == measure(runs / "pair").points[2]
