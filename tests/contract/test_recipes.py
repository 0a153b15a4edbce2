"""What every shipped recipe must fulfil."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from allrounder.config.time import Clock
from allrounder.data.base import Data, Subset
from allrounder.data.batches import Batches
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.models import ModelSpec
from allrounder.models.resnet import PreActResNet18, ResNet18
from allrounder.models.resnet_imagenet import ResNet50, WideResNet50
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet
from allrounder.nn.state import distance
from allrounder.recipe.init import STAGES_DIR, FromRun
from allrounder.recipe.lint import warnings_for
from allrounder.recipe.pipeline import ModeConnectivity, SelfTraining, WeightSoup
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.rng import Rng
from allrounder.training.data import load_data, train_val_split
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.support import samples
from tests.support.offenders import check_each, for_each

NAMES = list(shipped_recipes())
STEPS = 6
"""Steps of an epoch, where images are not at hand."""
THIN: dict[type[ModelSpec], list[str]] = {
    SmallCnn: ["model.width=2"],
    ResNet18: ["model.width=8"],
    PreActResNet18: ["model.width=8"],
    WideResNet: ["model.width=8", "model.widen=1", "model.depth=10"],
    ResNet50: ["model.width=2"],
    WideResNet50: ["model.width=2"],
}
"""Narrow networks, and a shallow one. Not narrower: shortcuts of stride 2 need 8 channels, because below that
the gradient of such 1x1 convolutions in channels_last writes beyond its memory (torch 2.13 on a CPU)."""
DEFAULT_TRAININGS = {
    *("embedded/soup", "mnist/generalist-t", "cifar10/generalist-t-released", "cifar100/generalist-t-wrn"),
    "imagenet/generalist-t",
}
"""Recipes that every run of the tests trains: a pipeline, variants, most datasets and networks."""
loaded = cache(Recipe.load)
"""Read once; recipes are values."""
MIXED = [name for name in NAMES if loaded(name).effective_mix.exchange is not None]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Data]]:
    """By recipe: two batches of training images, some to hold out, some to test; read from files."""
    root, by_recipe, read = tmp_path_factory.mktemp("data"), dict[str, Data](), dict[str, Data]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(root))
        for name in NAMES:
            kind = str(tomllib.loads(loaded(name).dumps())["data"]["kind"])
            if kind not in read:
                if kind != "embedded":
                    samples.write(kind, root / kind)
                sets = ["data.size=32", "data.workers=0"] if kind == "imagenet" else []
                whole = load_data(Recipe.load(name, sets))
                train = Subset(whole.train, torch.arange(samples.TRAIN))
                test = Subset(whole.test, torch.arange(samples.TEST))
                read[kind] = Data(whole.name, train, test, whole.classes)
            by_recipe[name] = read[kind]
        yield by_recipe


def small(name: str) -> Recipe:
    """The same recipe for two steps on few images."""
    recipe = loaded(name)
    sets = ["epochs=1", "batch_size=15" if recipe.validation.on == "test" else "batch_size=10"]
    sets += ["validation.images=10", "validation.train_images=0", "validation.every=1"]
    sets += ["validation.attack={ kind = 'pgd', steps = 1 }"]
    sets += THIN[type(recipe.model)]
    # Large images are slow. In channels_last, torch 2.13 also crashes in the gradients of a network of width
    # 2 at 288 pixels; widths 4, 8 and 64 work.
    sets += [f"task.{task.name}.augment.size=40" for task in recipe.tasks if task.augment.sides]
    sets += [f"{place}.steps=2" for place in attacked(recipe)]
    if isinstance(recipe.pipeline, ModeConnectivity):
        sets.append("pipeline.points=2")
    if isinstance(recipe.pipeline, WeightSoup) and recipe.pipeline.choose is not None:
        sets.append("pipeline.choose.parts=2")
    return Recipe.load(name, sets)


def start_from(base: str, recipe: Recipe, data: Data, folder: Path) -> Recipe:
    """The recipe with a start from a short training of another one."""
    train(small(base), folder, data=data)
    return replace(recipe, init=FromRun(run=str(folder)))


def attacked(recipe: Recipe) -> list[str]:
    """Where the attacks of tasks stand that have steps, also those of the stages of a pipeline."""
    raw = tomllib.loads(recipe.dumps())
    places = {"task": raw["task"]}
    for key, phases in raw.get("pipeline", {}).items():
        for phase in phases if isinstance(phases, list) else [phases]:
            if isinstance(phase, dict) and "task" in phase:
                member = f".{phase['name']}" if isinstance(phases, list) else ""
                places[f"pipeline.{key}{member}.task"] = phase["task"]
    every = [(f"{place}.{task['name']}", task) for place, tasks in places.items() for task in tasks]
    attacks = [(f"{place}.objective.attack", task["objective"].get("attack", {})) for place, task in every]
    attacks += [(f"{place}.attack", attack["attack"]) for place, attack in attacks if "attack" in attack]
    norms = ("linf", "l2", "l1")
    attacks += [(f"{at}.{norm}", attack[norm]) for at, attack in attacks for norm in norms if norm in attack]
    return [place for place, attack in attacks if "steps" in attack]


def exchanges(recipe: Recipe, clock: Clock) -> list[int]:
    return [t for t in range(1, clock.total_steps + 1) if recipe.effective_mix.exchange_due(t, clock)]


@for_each(NAMES)
def test_its_description_is_one_line(name: str):
    about = loaded(name).about
    assert about.strip() == about != ""
    assert "\n" not in about
    assert len(about) <= 100


@for_each(NAMES)
def test_it_is_written_and_read_again(name: str):
    recipe = loaded(name)
    assert Recipe.loads(recipe.dumps()) == recipe
    assert Recipe.load(name) == recipe


@for_each(NAMES)
def test_it_is_selected_and_evaluated_under_its_training_threats(name: str):
    recipe = loaded(name)
    trained = {str(threat) for task in recipe.tasks for threat in task.objective.threats()}
    assert {str(threat) for threat in recipe.selection_threats} == trained
    assert trained <= {str(probe.threat) for probe in recipe.probes}
    assert recipe.probes


@pytest.mark.filterwarnings("ignore:Linf.0.031 is close to 8/255")  # it is meant: as released
@pytest.mark.parametrize(
    "name",
    [name if name in DEFAULT_TRAININGS else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_it_trains_two_steps(name: str, few: dict[str, Data], tmp_path: Path):
    recipe, data = small(name), few[name]
    if isinstance(recipe.init, FromRun):
        recipe = start_from(f"cifar10/{Path(recipe.init.run).name}", recipe, data, tmp_path / "base")
    run = train(recipe, tmp_path / "run", data=data)
    assert run.finished
    kept, _ = train_val_split(recipe, data)
    assert Batches(kept, recipe.batch_size, Rng(recipe.seed)).steps == 2
    for phase, training in recipe.stage_recipes().items():
        events = (run if recipe.pipeline is None else Run(run.folder / STAGES_DIR / phase)).metrics()
        epochs = [event for event in events if event["event"] == "epoch"]
        assert [event["learner"] for event in epochs] == list(training.names) * training.epochs
        assert all(math.isfinite(event["loss"]) for event in epochs)
    theta, facts = run.weights()
    # With half of the labels hidden, there is one batch of images with labels.
    assert facts["t"] == (1 if isinstance(recipe.pipeline, SelfTraining) and recipe.pipeline.hidden else 2)
    assert all(bool(tensor.isfinite().all()) for tensor in theta.values() if tensor.is_floating_point())
    best, _ = run.weights("best")
    assert best.keys() == theta.keys()
    if len(recipe.names) == 1 and recipe.mix is None and not isinstance(recipe.pipeline, ModeConnectivity):
        assert distance(theta, run.weights(recipe.names[0])[0]) == 0


@pytest.mark.parametrize("epochs", [1, 2, pytest.param(5, marks=pytest.mark.slow), None])
def test_a_shortened_run_still_exchanges_at_the_same_share_of_its_length(epochs: int | None):
    check_each(MIXED, partial(check_exchanges, epochs=epochs))


def check_exchanges(name: str, epochs: int | None) -> None:
    recipe = Recipe.load(name, [] if epochs is None else [f"epochs={epochs}"])
    clock = Clock(recipe.epochs, STEPS, recipe.pace)
    due = exchanges(recipe, clock)
    assert due, "no exchange ever happens"
    assert not [remark for remark in warnings_for(recipe, clock) if remark.startswith("no exchange")]
    exchange = recipe.effective_mix.exchange
    assert exchange is not None
    start = exchange.start.to_steps(clock)
    # Not before t' (in whole epochs, where every step of a due epoch exchanges), and within one period of it.
    early = clock.steps_per_epoch if exchange.when == "every-step" else 0
    assert start - early <= due[0] <= start + exchange.period(clock)
    assert start == pytest.approx(0.01 * float(str(exchange.start).rstrip("%")) * clock.total_steps, abs=0.5)


@for_each(NAMES)
def test_every_time_is_a_share_of_the_run_or_a_rhythm(name: str):
    """So that `--set epochs=2` shortens everything alike."""
    raw = tomllib.loads(loaded(name).dumps())
    times = [time for task in raw["task"] for time in task["lr"].get("at", [])]
    times += [time for task in raw["task"] for time in task["objective"].get("tau", {}).get("at", [])]
    mix = raw.get("mix", {})
    shares, ramps = mix.get("shares", {}), [task["objective"].get("ramp") for task in raw["task"]]
    curves = [shares.get("curve"), *shares.get("curves", {}).values(), *ramps]
    times += [time for curve in curves if isinstance(curve, dict) for time in curve.get("at", [])]
    times += [task["objective"]["refresh"] for task in raw["task"] if "refresh" in task["objective"]]
    times += [mix["exchange"][key] for key in ("start", "every")] if "exchange" in mix else []
    assert all(time == 0 or str(time).endswith("%") for time in times)
