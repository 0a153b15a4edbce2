"""What may happen to a training of several processes. Run as a module, it lets all of it happen, with ranks
forked from one process, below a folder, and leaves how every rank ended in results.json."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn

import allrounder.training.training
from allrounder.distributed import Placement
from allrounder.distributed import coordinator as link
from allrounder.recipe.recipe import Recipe
from tests.distributed.processes import Ended, ranks, started
from tests.support.interruptions import STEP, Point, die, struck
from tests.support.networks import Tiny
from tests.support.programs import PROGRAMS, program
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, go, recipe

L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")
AVERAGED = LINF.replace("lr = 0.05", "lr = 0.05\naverage = 0.7")
DIVIDED = "curve = 0.6, rest = { natural = 0.5, l2 = 0.5 }"
TRIO = recipe(HEAD + AVERAGED + NATURAL + L2 + MIX.replace("curve = 0.6", DIVIDED))
"""Three learners with exchanges, validations and an average."""
TRAINED = LINF.replace("steps = 2 } }", "steps = 2 }, norm_layers = 'train' }")
UNEVEN = recipe(
    HEAD.replace("batch = 16", "batch = 17")
    + TRAINED.replace("lr = 0.05", 'lr = 0.05\nupdate = { kind = "awp", start = 1 }')
    + NATURAL
    + L2.replace("lr = 0.05", 'lr = 0.05\nupdate = { kind = "reconstructed", start = 1 }')
    + MIX.replace("curve = 0.6", DIVIDED)
)
"""Batches of 17, 17 and 2 images, which ranks cannot share evenly, and three cannot share the last; attacks
move batch-norm, and after an epoch updates edit gradients and weights."""
OTHER_SEAT = {"linf": (1,), "natural": (0,), "l2": (1,)}
BACKWARDS = {"linf": (2,), "natural": (1,), "l2": (0,)}
PATIENCE = "ALLROUNDER_TIMEOUT"


def tiny64() -> nn.Module:
    return Tiny().double()


def seated(ranks_: dict[str, tuple[int, ...]]) -> Callable[..., Placement]:
    return lambda *_: Placement(ranks_)


def plainly(out: Path, _: int) -> None:
    go(TRIO, out, resume=True)


def placed(value: Recipe, out: Path, ranks_: dict[str, tuple[int, ...]], _: int) -> None:
    allrounder.training.training.seating = seated(ranks_)
    go(value, out)


def struck_at(value: Recipe, out: Path, victim: int, strike: Callable[[], object], rank: int) -> None:
    """Let something happen to one rank in its fifth step."""
    with struck(Point(STEP, 5), strike) if rank == victim else nullcontext():
        go(value, out)


def terminated_in_a_group(out: Path, rank: int) -> None:
    """A signal to a rank that works for another one, which nobody waits for. Those who speak for a learner
    look out for it twice a second, and a training this small would be over by then."""
    link.PULSE = 0.001
    struck_at(UNEVEN, out, 1, terminate, rank)


def on_rank_1(act: Callable[[int], object], rank: int) -> None:
    """Let rank 1 train what need not start from runs, and rank 0 write; so the bits are those of one
    process."""
    allrounder.training.training.seating = lambda recipe, *_: Placement(
        {task.name: (0 if task.update.members else 1,) for task in recipe.tasks}
    )
    act(rank)


def hung_at(out: Path, rank: int) -> None:
    os.environ[PATIENCE] = "6"
    struck_at(TRIO, out, 1, hang, rank)


def hang() -> None:
    """For as long as somebody waits for it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


def give_way() -> None:
    raise OSError(28, "No space left on device")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def end_all(children: list[int]) -> None:
    """Wait until the others have noticed that the second rank hangs, then end it."""
    for child in (children[0], *children[2:]):
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    os.kill(children[1], signal.SIGKILL)


def everything(out: Path) -> dict[str, Ended]:
    """Every scenario, by name: the codes of all ranks, and what they said."""
    link.PULSE = 0.1  # so that what happens to one is noticed sooner
    go(TRIO, out / "serial")
    go(UNEVEN, out / "uneven serial", model=tiny64)
    other = recipe(TRIO.dump(), ("seed = 5", "seed = 6"))
    found: dict[str, Ended] = {}

    def let(name: str, size: int, body: Callable[[int], object]) -> None:
        found[name] = ranks(size, body, out / "said" / name)

    # Most of its time is patience, in which others may happen.
    hung = started(3, partial(hung_at, out / "hung"), out / "said" / "hung", end_all)
    let("in order", 3, partial(plainly, out / "in order"))
    let("other seats", 2, partial(placed, TRIO, out / "other seats", OTHER_SEAT))
    let("backwards", 3, partial(placed, TRIO, out / "backwards", BACKWARDS))
    let("shared", 6, lambda rank: go(UNEVEN, out / "shared", model=tiny64))
    let("other recipe", 2, lambda rank: go(other if rank else TRIO, out / "other recipe"))
    let("failed", 3, partial(struck_at, TRIO, out / "failed", 2, give_way))
    let("stopped", 3, partial(struck_at, TRIO, out / "stopped", 2, terminate))
    let("stopped, shared", 4, partial(terminated_in_a_group, out / "stopped, shared"))
    let("killed", 3, partial(struck_at, TRIO, out / "killed", 1, die))
    let("killed, resumed", 2, partial(plainly, out / "killed"))
    go(TRIO, out / "stopped", resume=True)
    stopped = partial(struck_at, program("soup"), out / "soup", 1, terminate)
    let("soup, stopped", 2, partial(on_rank_1, stopped))
    for name in PROGRAMS:
        go(program(name), out / f"{name} serial")
        performed = partial(go, program(name), out / name, resume=True)
        let(name, 2, partial(on_rank_1, lambda _, performed=performed: performed()))
    found["hung"] = hung()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(everything(folder)))
