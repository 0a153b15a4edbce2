"""The works that faults are done to: trainings, evaluations and studies that take about a second.

A trial has a folder, in which all commands run, with relative paths:

work      the run, evaluation or study
model     the trained network that an evaluation uses
cache     files of a dataset (only of the training on cached data)
"""

from __future__ import annotations

import gzip
import json
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from fault_processes import Command

from allrounder.data.files.catalog import IDX_FILES
from allrounder.training.record import read_metrics

WORK, MODEL, CACHE = "work", "model", "cache"
RECIPE = """
epochs = 3
batch_size = 40
train_images = 200
checkpoint = 0.4
seed = 5
data = { kind = "DATA" }
model = { kind = "small-cnn", width = 2 }
probes = ["pgd-2@Linf:0.02", "aa@Linf:0.02"]
[validation]
images = 40
train_images = 0
every = 1
threats = ["Linf:0.1"]
attack = { kind = "pgd", steps = 1 }
[[task]]
name = "natural"
objective = { kind = "natural" }
lr = 0.05
augment = { kind = "crop-flip", pad = 1 }
"""
PAIR = """
[[task]]
name = "linf"
objective = { kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
lr = 0.05
augment = { kind = "crop-flip", pad = 1 }
[mix]
decay = 0.8
shares = { lead = "linf", curve = 0.6 }
exchange = { start = 1, every = 1 }
"""
STUDY = """
name = "small"
base = "BASE"
images = 20
sets = ["epochs=2"]
row = [{ label = "slow", sets = ["task.natural.lr=0.02"] }, { label = "fast" }]
"""
RANK_TIMEOUT = "10"
"""Seconds after which a rank without a launcher notices that another one is gone."""
Remains = dict[str, object]


@final
@dataclass(frozen=True)
class Victim:
    """A work: the commands that start or continue it, those that read it, and what it leaves."""

    name: str
    commands: Callable[[Path], list[Command]]
    """Run at the same time; a second call continues the work."""
    remains: Callable[[Path], Remains]
    readers: Callable[[Path], list[Command]]
    inputs: Sequence[Path] = ()
    """Folders that are copied into the folder of a trial."""
    worker_processes: bool = False

    def setup(self, folder: Path) -> None:
        """Create the folder of a trial."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.inputs:
            shutil.copytree(path, folder / path.name)


def make_victims(bench: Path) -> dict[str, Victim]:
    """Write the files that all trials share, and return the works by name."""
    recipe = RECIPE.replace("DATA", "embedded")
    texts = {"solo": recipe, "pair": recipe + PAIR, "cached": RECIPE.replace("DATA", "mnist")}
    for name, text in texts.items():
        (bench / f"{name}.toml").write_text(text)
    (bench / "study.toml").write_text(STUDY.replace("BASE", str(bench / "solo.toml")))
    _write_cache(bench / CACHE / "mnist")
    solo, pair, cached = (str(bench / f"{name}.toml") for name in texts)
    train = partial(_train, words=("train", solo, "--out", WORK, "--threads", "1", "--resume"))
    pair_words = ("train", pair, "--out", WORK, "--threads", "1", "--resume")
    cached_words = ("train", cached, *train.keywords["words"][2:])
    evaluate = ("eval", MODEL, "--out", WORK, "--threat", "Linf:0.02", "--attack", "pgd-3")
    evaluate += ("--n", "40", "--batch-size", "8", "--attack")
    sweep = ("sweep", str(bench / "study.toml"), "--out", WORK, "--workers", "2")
    model, run = (bench / MODEL,), partial(_read, words=[["report", WORK], ["log", WORK], ["ls", WORK]])
    page, study = partial(_read, words=[["report", WORK]]), partial(_read, words=[["table", WORK], ["report", WORK]])
    victims = [
        Victim("training", train, run_remains, run),
        Victim("training, 2 ranks", partial(_ranks, words=pair_words), run_remains, run),
        Victim("training, cached data", partial(_cached, words=cached_words), run_remains, run, (bench / CACHE,)),
        Victim("evaluation", partial(_train, words=(*evaluate, "aa", "--workers", "1")), evaluation_remains, page, model),
        Victim("evaluation, 2 workers", partial(_train, words=(*evaluate, "aa", "--workers", "2")), evaluation_remains, page, model, True),
        Victim("study, 2 workers", partial(_train, words=sweep), study_remains, study, (), True),
        Victim("training (command)", partial(_train, words=train.keywords["words"], real=True), run_remains, run),
        Victim("training --workers 2 (command)", partial(_train, words=(*pair_words, "--workers", "2"), real=True), run_remains, run, (), True),
        Victim("evaluation --workers 2 (command)", partial(_train, words=(*evaluate, "apgd-ce", "--workers", "2"), real=True), evaluation_remains, page, model, True),
        Victim("sweep --workers 2 (command)", partial(_train, words=sweep, real=True), study_remains, study, (), True),
    ]  # fmt: skip
    return {victim.name: victim for victim in victims}


def _write_cache(folder: Path) -> None:
    """Write small images of noise as the files of MNIST, each class with a brightness of its own."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for name in IDX_FILES:
        count = 240 if name.startswith("train") else 40
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = (draws.integers(0, 60, (count, 28, 28)) + 18 * labels[:, None, None]).astype(np.uint8)
        array = labels if "labels" in name else images
        head = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


def _train(folder: Path, words: tuple[str, ...], real: bool = False) -> list[Command]:
    return [Command(words, folder, real=real)]


def _cached(folder: Path, words: tuple[str, ...]) -> list[Command]:
    return [Command(words, folder, {"ALLROUNDER_DATA": str(folder / CACHE)})]


def _ranks(folder: Path, words: tuple[str, ...]) -> list[Command]:
    """The processes of two ranks, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared["ALLROUNDER_TIMEOUT"] = RANK_TIMEOUT
    return [Command(words, folder, {**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]


def _read(folder: Path, words: list[list[str]]) -> list[Command]:
    """Commands that read the work; a page goes beside it."""
    more = {"report": ["--out", "page.html", "--no-gallery"]}
    return [Command((*line, *more.get(line[0], [])), folder) for line in words]


def run_remains(folder: Path, work: str = WORK) -> Remains:
    """Return the weights of a run and its log without times."""
    run = folder / work
    left: Remains = {
        str(path.relative_to(folder)): path.read_bytes() for path in run.glob("weights/*/*.safetensors")
    }
    events = [event for event in read_metrics(run) if event["event"] != "comm_bytes"]
    left["metrics"] = [{key: event[key] for key in event if key != "seconds"} for event in events]
    return left


def evaluation_remains(folder: Path, work: str = WORK) -> Remains:
    """Return the outcome of an evaluation, byte by byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / work).rglob("outcome*.safetensors")}


def study_remains(folder: Path) -> Remains:
    """Return what the trainings and evaluations of a study left."""
    manifest: Any = json.loads((folder / WORK / "study.json").read_text())
    left: Remains = {"trials": [trial["folder"] for trial in manifest["trials"]]}
    for trial in manifest["trials"]:
        run = f"{WORK}/{trial['folder']}"
        left |= {f"{run} {name}": value for name, value in run_remains(folder, run).items()}
        left |= evaluation_remains(folder, run)
    return left


def first_difference(got: Remains, expected: Remains) -> str | None:
    """Return the first thing that differs, or None."""
    for name in sorted({*got, *expected}):
        if name not in got or name not in expected:
            return f"{name} is {'missing' if name not in got else 'additional'}"
        if got[name] != expected[name]:
            return f"{name} differs"
    return None
