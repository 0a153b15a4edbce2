"""Trainings with teachers and own batches, in one process and in several. Run as a module, it trains below a
folder, with ranks forked from one process, and writes all exit codes and errors to results.json."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch

import allrounder.training.setup
from allrounder.distributed import coordinator
from tests.distributed.ranks import RankResults, run_ranks
from tests.distributed.training_scenarios import (
    DIVIDED,
    L2,
    SWAPPED,
    fixed_placement,
    tiny64,
    train_placed,
    train_struck,
)
from tests.support.interruptions import die
from tests.support.trainings import HEAD, MIX, NATURAL, go, recipe

TAUGHT = """
[[task]]
name = "linf"
lr = 0.05
average = 0.7
[task.objective]
kind = "taught"
base = { kind = "half-half", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
natural = { teacher = "natural", weight = 0.7, temperature = 2 }
adversarial = { teacher = "global", weight = 0.5 }
refresh = 0.7
"""
OTHER = """
objective = { kind = "taught", base = { kind = "natural" }, natural = { teacher = "linf" }, refresh = 1 }
train_images = 20
batch_size = 9
"""
TRIO = recipe(
    HEAD
    + TAUGHT
    + NATURAL.replace('objective = { kind = "natural" }', OTHER)
    + L2
    + MIX.replace("curve = 0.6", DIVIDED)
)
"""A learner with two teachers, one of which it teaches and which has its own images; refreshes after steps 2,
3, 4, 6 and 8, checkpoints after steps 2, 4, 6 and 8."""
SHARED = {"linf": (0, 1), "natural": (2, 3), "l2": (4,)}


def run_all(out: Path) -> dict[str, RankResults]:
    """Train in one process, in two of which the second has the first and the last learner, and with learners
    that two ranks share; a run whose second rank is killed in its fifth step is resumed by one process."""
    coordinator.POLL_SECONDS = 0.1  # so that the other rank notices the failure sooner
    go(TRIO, out / "serial")
    go(TRIO, out / "serial, double", model=tiny64)
    results: dict[str, RankResults] = {}
    for name, size, body in (
        ("swapped", 2, partial(train_placed, TRIO, out / "swapped", SWAPPED)),
        ("shared", 5, partial(train_shared, out / "shared")),
        ("killed", 2, partial(train_struck, TRIO, out / "killed", 1, die)),
    ):
        results[name] = run_ranks(size, body, out / "errors" / name)
    go(TRIO, out / "killed", resume=True)
    return results


def train_shared(out: Path, _: int) -> None:
    allrounder.training.setup.place_learners = fixed_placement(SHARED)
    go(TRIO, out, model=tiny64)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(run_all(folder)))
