"""Training on random crops of whole images: addressed, the same in any process, of sizes that may change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from allrounder.config.time import Clock
from allrounder.data.augment import Chain, ColorJitter, ResizedCrop
from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe
from allrounder.training.planning import plan
from allrounder.training.run import Run
from allrounder.training.train import train
from allrounder.training.trainer import Trainer
from tests.support.networks import blobs
from tests.support.pictures import ROOT
from tests.support.trainings import EndsAfter, remains
from tests.unit.data.test_views import write_framed

WORLD = World(0, 1, torch.device("cpu"))
HEAD = """
epochs = 2
batch_size = 8
seed = 5
checkpoint = 0.5
data = { kind = "folder", path = "PATH", size = 16, workers = 0 }
model = { kind = "resnet18", width = 8 }
[validation]
images = 4
every = 1
threats = []
"""
NATURAL = """
[[task]]
name = "natural"
objective = { kind = "natural" }
lr = 0.05
[task.augment]
kind = "chain"
steps = [{ kind = "resized-crop", scale = [0.08, 1.0] }, { kind = "color-jitter" }]
"""
OTHER = NATURAL.replace('"natural"\nobj', '"other"\nobj').replace("lr = 0.05", "lr = 0.05\nSTREAM")
MIX = """
[mix]
decay = 0.8
shares = { lead = "natural", curve = 0.6 }
exchange = { start = 1, every = 1 }
"""
GROWING = 'size = { kind = "step", at = [0, 2], to = [8, 24] }'


def pair(root: Path, stream: str = 'augment_stream = "own"', workers: int = 0) -> Recipe:
    text = (HEAD + NATURAL + OTHER + MIX).replace("PATH", str(root)).replace("STREAM", stream)
    return Recipe.loads(text.replace("workers = 0", f"workers = {workers}"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_framed(tmp_path_factory.mktemp("framed"), 10)


def trainer_of(value: Recipe, folder: Path, data: Data | None = None) -> Trainer:
    run = Run.open_or_create(folder, value, resume=False)
    return Trainer(value, run, None, data or value.data.load(), WORLD)


@pytest.mark.parametrize(("stream", "views"), [("", 1), ('augment_stream = "own"', 2)])
def test_learners_share_the_crops_of_a_stream(root: Path, tmp_path: Path, stream: str, views: int):
    trainer = trainer_of(pair(root, stream), tmp_path / "run")
    batches = trainer.fetch_batches(2)
    assert len(batches) == views
    seen = [batches[learner.augment_key] for learner in trainer.learners]
    assert all(batch.is_cropped for batch in seen) and torch.equal(seen[0].index, seen[1].index)
    assert torch.equal(seen[0].x, seen[1].x) == (views == 1)
    for learner, batch in zip(trainer.learners, seen, strict=True):
        prepared = learner.prepare_batch(batch, 2)
        rng = learner.rng.fold_in("augment", learner.task.augment_stream, 2)
        expected = ColorJitter().apply(batch, rng.fold_in("step", 1))
        assert torch.equal(prepared.x, expected.x) and not prepared.is_cropped
    assert not torch.equal(trainer.fetch_batches(3)[trainer.learners[0].augment_key].x, seen[0].x)


@pytest.mark.slow
def test_a_resumed_run_with_decoders_equals_an_uninterrupted_one(root: Path, tmp_path: Path):
    train(pair(root), tmp_path / "whole")
    with pytest.raises(KeyError):
        train(pair(root), tmp_path / "parts", progress=EndsAfter(3))
    train(pair(root, workers=1), tmp_path / "parts", resume=True)
    whole, parts = remains(tmp_path / "whole"), remains(tmp_path / "parts")
    assert {name for name in whole if whole[name] != parts[name]} <= {"recipe.toml"}
    assert any("last" in name for name in whole)


@pytest.mark.slow
def test_two_processes_equal_one(root: Path, tmp_path: Path):
    file = tmp_path / "pair.toml"
    file.write_text(pair(root).dumps())
    for workers in ("1", "2"):
        words = ["-m", "allrounder", "train", str(file), "--threads", "1", "--workers", workers]
        command = [sys.executable, *words, "--out", str(tmp_path / workers)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    one, two = (Run(tmp_path / workers).weights("last")[0] for workers in ("1", "2"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def growing(root: Path) -> Recipe:
    text = (HEAD + NATURAL).replace("PATH", str(root)).replace("scale = [0.08, 1.0]", GROWING)
    return Recipe.loads(text)


def test_the_size_of_crops_changes_between_epochs(root: Path, tmp_path: Path):
    value = growing(root)
    assert Recipe.loads(value.dumps()) == value
    trainer = trainer_of(value, tmp_path / "run")
    (learner,) = trainer.learners
    steps = trainer.clock.steps_per_epoch
    shapes = [trainer.fetch_batches(t)[learner.augment_key].x.shape[2:] for t in range(1, 2 * steps + 1)]
    assert shapes == [(8, 8)] * steps + [(24, 24)] * steps
    assert trainer.data.dataset.shape == (3, 16, 16), "validation keeps the size of the data"
    trainer.fit()


def test_images_in_memory_get_another_size_too(tmp_path: Path):
    value = Recipe.loads(
        (HEAD + NATURAL)
        .replace('kind = "folder", path = "PATH", size = 16, workers = 0', 'kind = "python", name = "x"')
        .replace("scale = [0.08, 1.0]", "size = 24")
    )
    trainer = trainer_of(value, tmp_path / "run", blobs(24))
    (batch,) = trainer.fetch_batches(1).values()
    assert batch.x.shape[2:] == (24, 24) and batch.is_cropped


@pytest.mark.parametrize("pace", ["epoch", "step"])
def test_a_size_holds_from_the_epoch_of_its_number(pace):
    (task,) = Recipe.load("imagenet/fast-at").tasks
    clock = Clock(15, 4, pace)
    sides = [task.augment.crop_size((224, 224), t, clock)[0] for t in range(1, 61)]
    assert sides == [128] * 24 + [224] * 24 + [288] * 12
    assert ResizedCrop().crop_size((9, 7), 1, clock) == (9, 7) and ResizedCrop().sides == ()


def test_a_network_that_needs_one_size_is_refused_before_the_run_exists(root: Path, tmp_path: Path):
    def fixed() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))

    message = r"task\.natural\.augment\.size: the network does not accept images of 8x8 pixels .*choose other"
    with pytest.raises(RecipeError, match=message):
        train(growing(root), tmp_path / "run", model=fixed)
    assert not (tmp_path / "run").exists()


def test_a_size_needs_a_pixel_and_the_first_place_in_a_chain():
    with pytest.raises(ValueError, match="ResizedCrop with a size must be the first step"):
        Chain(steps=(ColorJitter(), Recipe.load("imagenet/fast-at").tasks[0].augment))
    with pytest.raises(RecipeError, match="expected 1 pixel or more, or false, got 0"):
        Recipe.load("imagenet/fast-at", ["task.linf.augment.size=0"])


def test_a_plan_measures_all_sizes(root: Path):
    seen: list[int] = []

    class Counter:
        def begin(self, total: int, done: int) -> None:
            seen.append(total)

        def step(self, t: int) -> None:
            seen.append(t)

        def log(self, text: str) -> None: ...

    measured = plan(growing(root), steps=1, progress=Counter())
    assert seen == [5, 1, 2, 3, 4, 5], "two steps of either size, and a checkpoint"
    assert measured.step_seconds > 0 and measured.fetch_seconds > 0
