"""Trainings in several processes, and what may happen to them. Run as a module, it runs all scenarios below a
folder, with ranks forked from one process, and writes all exit codes and errors to results.json."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

import allrounder.training.setup
from allrounder.distributed import Placement, coordinator
from allrounder.distributed.world import TIMEOUT_VARIABLE
from allrounder.recipe.compute import Compute
from allrounder.recipe.recipe import Recipe
from tests.distributed.ranks import RankResults, run_ranks, start_ranks
from tests.support.interruptions import STEP, Point, die, struck
from tests.support.networks import Tiny, broad, tiny
from tests.support.pipelines import PIPELINES, pipeline
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, Model, go, recipe

L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")
AVERAGED = LINF.replace("lr = 0.05", "lr = 0.05\naverage = 0.7")
DIVIDED = "curve = 0.6, rest = { natural = 0.5, l2 = 0.5 }"
TRIO = recipe(HEAD + AVERAGED + NATURAL + L2 + MIX.replace("curve = 0.6", DIVIDED))
"""Three learners with exchanges, validations and an average."""
TRAINED = LINF.replace("steps = 2 } }", "steps = 2 }, norm_layers = 'train' }")
UNEVEN = recipe(
    HEAD.replace("batch_size = 16", "batch_size = 17")
    + TRAINED.replace("lr = 0.05", 'lr = 0.05\nupdate = { kind = "awp", start = 1 }')
    + NATURAL
    + L2.replace("lr = 0.05", 'lr = 0.05\nupdate = { kind = "agr", start = 1 }')
    + MIX.replace("curve = 0.6", DIVIDED)
)
"""Batches of 17, 17 and 2 images, which ranks cannot share evenly, and three cannot share the last; attacks
move batch-norm, and after an epoch updates edit gradients and weights."""
FAST = replace(TRIO, compute=Compute(fast_conv=True))
"""Three learners that craft with fast convolutions."""
SWAPPED = {"linf": (1,), "natural": (0,), "l2": (1,)}
BACKWARDS = {"linf": (2,), "natural": (1,), "l2": (0,)}


def tiny64() -> nn.Module:
    return Tiny().double()


def fixed_placement(ranks_: dict[str, tuple[int, ...]]) -> Callable[..., Placement]:
    return lambda *_: Placement(ranks_)


def train_trio(out: Path, _: int) -> None:
    go(TRIO, out, resume=True)


def train_placed(
    value: Recipe, out: Path, ranks_: dict[str, tuple[int, ...]], _: int, model: Model = tiny
) -> None:
    allrounder.training.setup.place_learners = fixed_placement(ranks_)
    go(value, out, model=model)


def train_struck(value: Recipe, out: Path, victim: int, strike: Callable[[], object], rank: int) -> None:
    """Let something happen to one rank in its fifth step."""
    with struck(Point(STEP, 5), strike) if rank == victim else nullcontext():
        go(value, out)


def terminate_follower(out: Path, rank: int) -> None:
    """Send a signal to a follower, which no rank waits for. Leaders check for stops twice a second, and this
    training would be over by then, so they check more often here."""
    coordinator.POLL_SECONDS = 0.001
    train_struck(UNEVEN, out, 1, terminate, rank)


def on_rank_1(act: Callable[[int], object], rank: int) -> None:
    """Let rank 1 train all learners that do not start from other runs, while rank 0 writes."""
    allrounder.training.setup.place_learners = lambda recipe, *_: Placement(
        {task.name: (0 if task.update.num_init_runs else 1,) for task in recipe.tasks}
    )
    act(rank)


def hang_rank_1(out: Path, rank: int) -> None:
    os.environ[TIMEOUT_VARIABLE] = "6"
    train_struck(TRIO, out, 1, hang, rank)


def hang() -> None:
    """Sleep as long as the parent process lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


def fill_disk() -> None:
    raise OSError(28, "No space left on device")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill_hung_rank(children: list[int]) -> None:
    """Wait until the others have noticed that the second rank hangs, then end it."""
    for child in (children[0], *children[2:]):
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    os.kill(children[1], signal.SIGKILL)


def run_all(out: Path) -> dict[str, RankResults]:
    """Run every scenario; the exit codes and errors of all ranks, by name."""
    coordinator.POLL_SECONDS = 0.1  # so that the other ranks notice a failure sooner
    go(TRIO, out / "serial")
    go(UNEVEN, out / "uneven serial", model=tiny64)
    go(FAST, out / "fast serial", model=broad)
    other = recipe(TRIO.dumps(), ("seed = 5", "seed = 6"))
    results: dict[str, RankResults] = {}

    def run(name: str, size: int, body: Callable[[int], object]) -> None:
        results[name] = run_ranks(size, body, out / "errors" / name)

    # It mostly waits for its timeout, so the other scenarios run meanwhile.
    hung = start_ranks(3, partial(hang_rank_1, out / "hung"), out / "errors" / "hung", kill_hung_rank)
    run("in order", 3, partial(train_trio, out / "in order"))
    run("swapped", 2, partial(train_placed, TRIO, out / "swapped", SWAPPED))
    run("backwards", 3, partial(train_placed, TRIO, out / "backwards", BACKWARDS))
    run("fast", 2, partial(train_placed, FAST, out / "fast", SWAPPED, model=broad))
    logged = replace(TRIO, tensorboard=True)
    run("events", 3, partial(train_placed, logged, out / "events", BACKWARDS))
    run("shared", 6, lambda rank: go(UNEVEN, out / "shared", model=tiny64))
    run("other recipe", 2, lambda rank: go(other if rank else TRIO, out / "other recipe"))
    run("failed", 3, partial(train_struck, TRIO, out / "failed", 2, fill_disk))
    run("stopped", 3, partial(train_struck, TRIO, out / "stopped", 2, terminate))
    run("stopped, shared", 4, partial(terminate_follower, out / "stopped, shared"))
    run("killed", 3, partial(train_struck, TRIO, out / "killed", 1, die))
    run("killed, resumed", 2, partial(train_trio, out / "killed"))
    go(TRIO, out / "stopped", resume=True)
    stopped = partial(train_struck, pipeline("soup"), out / "soup", 1, terminate)
    run("soup, stopped", 2, partial(on_rank_1, stopped))
    for name in PIPELINES:
        go(pipeline(name), out / f"{name} serial")
        train = partial(go, pipeline(name), out / name, resume=True)
        run(name, 2, partial(on_rank_1, lambda _, train=train: train()))
    results["hung"] = hung()
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(run_all(folder)))
