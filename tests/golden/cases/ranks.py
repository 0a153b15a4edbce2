"""Trainings and evaluations in several processes, and ones that are killed. Run as a module, it runs them all
below a folder, with ranks forked from one process, and writes their results to results.json."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from allrounder.distributed import World
from allrounder.evaluation.probes import Probe
from allrounder.threats.threat import Threat
from tests.distributed import ranks
from tests.golden.cases.evaluation import CASCADE, run_probes
from tests.golden.cases.training import GREY, load_grey_images, run_recipe, summarise_run
from tests.golden.results import Result

RECIPE = "embedded/generalist-t"
SETS = (*GREY, "checkpoint=1", "task.linf.average=0.7", "mix.buffers='recalibrate'")
"""Checkpoints come every two steps."""
SAVED = 75
"""The code of a rank that stopped after a signal."""


class Strike:
    """A listener of a training that sends a signal to its own process after a step."""

    def __init__(self, step: int, number: int) -> None:
        self.last, self.number = step, number

    def begin(self, total: int, done: int) -> None:
        """Do nothing."""

    def step(self, t: int) -> None:
        """Send the signal when it is time."""
        if t == self.last:
            os.kill(os.getpid(), self.number)

    def log(self, text: str) -> None:
        """Do nothing."""


def train_alone(out: Path, resume: bool = False, listener: Strike | None = None, rank: int = 0) -> None:
    """Train one rank's learners."""
    run_recipe(RECIPE, SETS, load_grey_images(), out, resume=resume, progress=listener)


def evaluate_alone(out: Path, rank: int) -> None:
    """Evaluate one rank's images."""
    probes = [Probe("all", CASCADE, Threat.parse("L2:0.5")), Probe.parse("pgd-3@Linf:0.05")]
    with World.open() as world:
        found = run_probes(probes, world=world)
    if rank == 0:
        out.write_text(json.dumps(found))


def run_ranks(size: int, body: Callable[[int], object], out: Path, expected: int = 0) -> None:
    """Run a body in every rank of a world, in processes of their own, and check how they end."""
    codes, messages = ranks.run_ranks(size, body, out.with_name(f"{out.name} messages"))
    assert codes == [expected] * size, (codes, messages)


def run_everything(folder: Path) -> dict[str, Result]:
    """Run all cases."""
    found: dict[str, Result] = {}

    def train_in(name: str, size: int) -> None:
        out = folder / name
        run_ranks(size, partial(train_alone, out, False, None), out)
        found[name] = summarise_run(out)

    train_alone(folder / "serial")
    found["serial"] = summarise_run(folder / "serial")
    train_in("two-ranks", 2)
    train_in("four-ranks", 4)
    for name, number, code in (("killed", signal.SIGKILL, -9), ("stopped", signal.SIGTERM, SAVED)):
        out = folder / name
        run_ranks(1, partial(train_alone, out, False, Strike(5, number)), out, code)
        train_alone(out, resume=True)
        found[f"{name}-and-resumed"] = summarise_run(out)
    for name, size in (("evaluation/serial", 1), ("evaluation/two-ranks", 2)):
        out = folder / f"{size}.json"
        run_ranks(size, partial(evaluate_alone, out), out)
        found[name] = json.loads(out.read_text())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    (place / "results.json").write_text(json.dumps(run_everything(place)))
