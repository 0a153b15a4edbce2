"""A tiny evaluation that tests repeat in parts, in other processes, and with kills.

Run as a module, it evaluates into a folder, or forks copies that do so and kills them at random moments.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks import Apgd, Cascade, Fab, Square
from allrounder.data.base import Split
from allrounder.evaluation import runner
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.rng import Rng
from allrounder.system.progress import ProgressEvent
from allrounder.threats.threat import Threat
from tests.support.networks import Tiny, Unfoldable, blobs
from tests.support.paths import PROJECT

BATCH_SIZE = 8
PARTS = (Square(queries=6), Apgd(steps=3), Fab(steps=2, targets=1))
CASCADE = Probe("all", Cascade(attacks=PARTS), Threat.parse("L2:0.5"))
PGD = Probe.parse("pgd-3@Linf:0.06")
PROBES = (CASCADE, PGD)
VICTIMS, KILLS = 8, 3


class RowwiseLinear(nn.Linear):
    """A linear layer whose bits do not depend on the position of a row in the batch, on any machine."""

    def forward(self, input: Tensor) -> Tensor:
        return (input[:, None] * self.weight).sum(2) + self.bias


class Slow(Unfoldable):
    """Slow enough to be killed during a call."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.003)
        return super().forward(x)


class Fatal(Unfoldable):
    """Ends a worker process some passes after it sees a certain image."""

    image: Tensor
    after = 10
    shown = 0

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            self.shown += bool(self.shown) or bool((x == self.image).flatten(1).all(1).any())
            if self.shown > self.after:
                os._exit(7)
        return super().forward(x)


def images(count: int = 24) -> Split:
    return blobs(train=3, test=count).test


@cache
def _weights() -> dict[str, Tensor]:
    with Rng(1).seed_global():
        model = Tiny()
    data, sgd = blobs(train=60, test=3).train, torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = F.cross_entropy(model(data.fetch(torch.arange(60))), data.labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return model.state_dict()


def trained_network(kind: type[Tiny] = Tiny) -> nn.Module:
    """A network that classifies some images correctly with a margin, some without, and some wrongly."""
    model = kind()
    model.linear = RowwiseLinear(model.linear.in_features, model.linear.out_features)
    model.load_state_dict(_weights())
    return model.eval()


def group_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Move the arguments that are fields of EvalOptions into `options`."""
    names = {field.name for field in fields(EvalOptions)}
    options = EvalOptions(**{name: value for name, value in arguments.items() if name in names})
    return {name: value for name, value in arguments.items() if name not in names} | {"options": options}


def run_evaluation(out: Path | None = None, probes: Sequence[Probe] = PROBES, **options: Any) -> Outcome:
    """Run the tiny evaluation; options change it."""
    model, split = options.pop("model", None) or trained_network(), options.pop("split", None) or images()
    options = group_options({"batch_size": BATCH_SIZE, "check": "skip", **options})
    return evaluate(model, split, probes=probes, out=out, **options)


def read_outcome_bytes(folder: Path) -> bytes:
    """The bytes of the outcome file of an evaluation."""
    return (folder / OUTCOME_FILE).read_bytes()


@cache
def reference_outcome_bytes() -> bytes:
    """The bytes of the outcome file of an uninterrupted evaluation in one process."""
    with TemporaryDirectory() as folder:
        run_evaluation(Path(folder))
        return read_outcome_bytes(Path(folder))


def kill_at_random(out: Path) -> dict[str, list[int]]:
    """Evaluate once, then kill forked copies at random moments; returns the exit codes by victim."""
    runner.SAVE_INTERVAL = runner.REPORT_INTERVAL = -1.0
    run_evaluation(model=trained_network(Slow))  # torch loads lazily; the copies share what is loaded
    begun = time.monotonic()
    run_evaluation(out / "whole", model=trained_network(Slow))
    spent, moments = time.monotonic() - begun, random.Random(0)
    ends: dict[str, list[int]] = {f"victim {number}": [] for number in range(VICTIMS)}
    for name in [name for name in ends for _ in range(KILLS)]:
        child = os.fork()
        if child == 0:
            run_evaluation(out / name, model=trained_network(Slow))
            os._exit(0)
        time.sleep(moments.uniform(0, spent / 1.5))
        os.kill(child, signal.SIGKILL)
        ends[name].append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ends


def with_workers(out: Path) -> None:
    """Evaluate with two workers, and print their process numbers as soon as both work."""
    seen = set[str]()

    def tell(note: ProgressEvent) -> None:
        if len(seen) < 2 and not seen.add(note.name) and len(seen) == 2:
            print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)

    run_evaluation(out, model=trained_network(Slow), workers=2, progress=tell)


def command(doing: str, out: Path) -> list[str]:
    """The command line that runs this module."""
    return [sys.executable, "-m", "tests.support.evaluations", doing, str(out)]


def run_kill_at_random(out: Path) -> dict[str, list[int]]:
    """Run `kill_at_random` in a new process; returns the exit codes by victim."""
    found = subprocess.run(command("kill", out), cwd=PROJECT, check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, doing, below = sys.argv
    if doing == "kill":
        print(json.dumps(kill_at_random(Path(below))))
    else:
        with_workers(Path(below))
