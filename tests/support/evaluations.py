"""An evaluation small enough to be made again and again: in parts, in other processes, and killed.

Run as a module, it evaluates into a folder, or lets copies of itself do so and kills them at random moments.
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
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks import Apgd, Cascade, Fab, Square
from allrounder.data.base import Split
from allrounder.evaluation import runner as assessment
from allrounder.evaluation.evaluate import OUTCOME, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import Outcome
from allrounder.rng import Draws
from allrounder.system.processes import Note
from allrounder.threats.threat import Threat
from tests.support.networks import Tiny, Unfoldable, blobs
from tests.support.paths import PROJECT

LANE = 8
PARTS = (Square(queries=6), Apgd(steps=3), Fab(steps=2, targets=1))
CASCADE = Probe("all", Cascade(attacks=PARTS), Threat.parse("L2:0.5"))
PGD = Probe.read("pgd-3@Linf:0.06")
PROBES = (CASCADE, PGD)
VICTIMS, KILLS = 8, 3


class Slow(Unfoldable):
    """Takes so long that it can be killed in between."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.003)
        return super().forward(x)


class Fatal(Unfoldable):
    """Takes a worker with it that was shown a certain image, after some passes."""

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
    with Draws(1).ambient():
        model = Tiny()
    data, sgd = blobs(train=60, test=3).train, torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = F.cross_entropy(model(data.fetch(torch.arange(60))), data.labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return model.state_dict()


def taught(kind: type[Tiny] = Tiny) -> nn.Module:
    """Gets some images right with a margin, some without, and some wrong."""
    model = kind()
    model.load_state_dict(_weights())
    return model.eval()


def measured(out: Path | None = None, probes: Sequence[Probe] = PROBES, **options: Any) -> Outcome:
    """The evaluation that others are compared with; options say what is different."""
    model, split = options.pop("model", None) or taught(), options.pop("split", None) or images()
    options.setdefault("check", "skip")
    return evaluate(model, split, probes=probes, lane=LANE, out=out, **options)


def saved(folder: Path) -> bytes:
    """All that an evaluation came to."""
    return (folder / OUTCOME).read_bytes()


@cache
def whole() -> bytes:
    """What the evaluation comes to in one go, in one process."""
    with TemporaryDirectory() as folder:
        measured(Path(folder))
        return saved(Path(folder))


def kill_at_random(out: Path) -> dict[str, list[int]]:
    """Evaluate whole, then let copies of this process be killed; how each of them ended, by victim."""
    assessment.SAVE_AFTER = assessment.TELL_AFTER = -1.0
    measured(model=taught(Slow))  # what torch loads at first use is shared by all copies
    begun = time.monotonic()
    measured(out / "whole", model=taught(Slow))
    spent, moments = time.monotonic() - begun, random.Random(0)
    ends: dict[str, list[int]] = {f"victim {number}": [] for number in range(VICTIMS)}
    for name in [name for name in ends for _ in range(KILLS)]:
        child = os.fork()
        if child == 0:
            measured(out / name, model=taught(Slow))
            os._exit(0)
        time.sleep(moments.uniform(0, spent / 1.5))
        os.kill(child, signal.SIGKILL)
        ends[name].append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ends


def with_workers(out: Path) -> None:
    """Evaluate with two workers, and print their numbers as soon as both are at it."""
    seen = set[str]()

    def tell(note: Note) -> None:
        if len(seen) < 2 and not seen.add(note.name) and len(seen) == 2:
            print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)

    measured(out, model=taught(Slow), workers=2, progress=tell)


def command(doing: str, out: Path) -> list[str]:
    """How this module is run."""
    return [sys.executable, "-m", "tests.support.evaluations", doing, str(out)]


def perished(out: Path) -> dict[str, list[int]]:
    """What `kill_at_random` says, in a process of its own."""
    found = subprocess.run(command("kill", out), cwd=PROJECT, check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, doing, below = sys.argv
    if doing == "kill":
        print(json.dumps(kill_at_random(Path(below))))
    else:
        with_workers(Path(below))
