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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from fault_processes import Command

from allrounder.data.files.catalog import IDX_FILES
from allrounder.training.record import read_metrics

WORK, MODEL, CACHE, PAGE = "work", "model", "cache", "page.html"
RECIPE = """
epochs = 3
batch_size = 30
train_images = 400
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
lr = 0.1
augment = { kind = "crop-flip", pad = 1 }
"""
PAIR = """
[[task]]
name = "linf"
objective = { kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
lr = 0.1
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
row = [{ label = "slow", sets = ["task.natural.lr=0.05"] }, { label = "fast" }]
"""
RANK_TIMEOUT = "20"
"""Seconds after which a rank notices that another one is gone."""
Remains = dict[str, object]


@final
@dataclass(frozen=True)
class Victim:
    """A work: the command that starts or continues it, and what it leaves."""

    name: str
    words: tuple[str, ...]
    inputs: Sequence[Path] = ()
    """Folders that are copied into the folder of a trial."""
    ranks: int = 1
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    real: bool = False
    """Whether new Python processes run it, as for a user."""

    def setup(self, folder: Path) -> None:
        """Create the folder of a trial."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.inputs:
            shutil.copytree(path, folder / path.name)

    def commands(self, folder: Path) -> list[Command]:
        """Return the commands of all ranks, which run at the same time; a second call continues the work."""
        if self.ranks == 1:
            return [Command(self.words, folder, self.variables, self.real)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # What torchrun sets.
        shared = {"WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        each = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self.ranks))
        return [Command(self.words, folder, {**self.variables, **shared, **own}) for own in each]

    def readers(self, folder: Path) -> list[Command]:
        """Return commands that read the work; a page goes beside it."""
        page = ("report", WORK, "--out", PAGE, "--no-gallery")
        more = {"train": [("log", WORK), ("ls", WORK)], "sweep": [("table", WORK)], "eval": []}
        return [Command(words, folder) for words in (page, *more[self.words[0]])]

    def remains(self, folder: Path) -> Remains:
        """Return the results of the work, all that an undisturbed one has."""
        functions = {"train": run_remains, "eval": evaluation_remains, "sweep": study_remains}
        return functions[self.words[0]](folder)


def make_victims(bench: Path) -> dict[str, Victim]:
    """Write the files that all trials share, and return the works by name."""
    recipe = RECIPE.replace("DATA", "embedded")
    texts = {"solo": recipe, "pair": recipe + PAIR, "cached": RECIPE.replace("DATA", "mnist")}
    for name, text in texts.items():
        (bench / f"{name}.toml").write_text(text)
    study = STUDY.replace("BASE", str(bench / "solo.toml"))
    (bench / "study.toml").write_text(study)
    (bench / "short.toml").write_text(
        f'{study}probes = ["pgd-2@Linf:0.02"]'
    )  # new processes have full budgets
    _write_cache(bench / CACHE / "mnist")
    end = ("--out", WORK, "--threads", "1", "--resume")
    solo, pair, cached = (("train", str(bench / f"{name}.toml"), *end) for name in texts)
    attacked = ("eval", MODEL, "--out", WORK, "--threat", "Linf:0.02", "--n", "40", "--batch-size", "8")
    attacked += ("--attack", "pgd-3", "--attack")
    sweep, short = (("sweep", str(bench / f"{name}.toml"), "--out", WORK) for name in ("study", "short"))
    two, model, cache = ("--workers", "2"), [bench / MODEL], [bench / CACHE]
    timeout = {"ALLROUNDER_TIMEOUT": RANK_TIMEOUT}
    victims = (
        Victim("training", solo),
        Victim("training, 2 ranks", pair, ranks=2, variables=timeout),
        Victim("training, cached data", cached, cache, variables={"ALLROUNDER_DATA": CACHE}),
        Victim("evaluation", (*attacked, "aa", "--workers", "1"), model),
        Victim("evaluation, 2 workers", (*attacked, "aa", *two), model),
        Victim("study, 2 workers", (*sweep, *two)),
        Victim("training (command)", solo, real=True),
        Victim("training --workers 2 (command)", (*pair, *two), variables=timeout, real=True),
        Victim("evaluation --workers 2 (command)", (*attacked, "apgd-ce", *two), model, real=True),
        Victim("sweep --workers 2 (command)", (*short, *two), real=True),
    )
    return {victim.name: victim for victim in victims}


def _write_cache(folder: Path) -> None:
    """Write small images of noise as the files of MNIST, each class with a brightness of its own."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for name in IDX_FILES:
        count = 440 if name.startswith("train") else 40
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = (draws.integers(0, 60, (count, 28, 28)) + 18 * labels[:, None, None]).astype(np.uint8)
        array = labels if "labels" in name else images
        head = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


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
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in (folder / work).rglob("outcome*.safetensors")
    }


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
