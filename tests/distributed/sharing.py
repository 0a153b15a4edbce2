"""What may happen to an evaluation of several processes. Run as a module, it lets all of it happen, with
ranks forked from one process, below a folder, and leaves how every rank ended in results.json."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allrounder.cli.target import subject_among
from allrounder.distributed import World
from allrounder.evaluation import distributed as sharing
from allrounder.evaluation import runner as assessment
from allrounder.evaluation.assemble import identity
from allrounder.evaluation.store import Ledger
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import NATURAL
from allrounder.rng import Draws
from allrounder.system.processes import Note
from allrounder.training.run import Run
from tests.distributed.processes import ranks, wait_for
from tests.support.evaluations import PGD, Slow, measured, taught


def evaluated(out: Path, rank: int, **options: Any) -> None:
    """One rank's part; each has a folder of its own, as on machines with no disk in common."""
    with World.opened() as world:
        measured(out / str(rank), world=world, **options).save(out / f"returned-{rank}.safetensors")


def struck(out: Path, number: int, rank: int) -> None:
    """The second rank gets a signal in the middle, when rank 0 has written down what it had left before."""

    def strike(note: Note) -> None:
        if rank == 1 and note.what == str(PGD) and note.done < note.total:
            wait_for(out / "heard")
            os.kill(os.getpid(), number)
        if rank == 0 and bool(Ledger(24, out / "0").lines(NATURAL).settled.sum() == 24):
            (out / "heard").touch()

    out.mkdir(exist_ok=True)
    evaluated(out, rank, model=taught(Slow), progress=strike)


def other_network(out: Path, rank: int) -> None:
    model = taught()
    if rank == 1:
        nn.init.zeros_(model.linear.weight)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    evaluated(out, rank, model=model)


def a_run(folder: Path) -> None:
    """A run that was never trained."""
    recipe = Recipe.load("embedded/nt", ["model.width=4", "seed=3"])
    data = recipe.read_data()
    with Draws(3).ambient():
        model = recipe.model.build(len(data.classes), data.shape)
    card = {"classes": list(data.classes), "shape": list(data.shape)}
    run = Run.begin(folder, recipe, resume=False)
    run.save_weights("last", 1, {"global": weights_of(model)}, card)


def of_a_run(out: Path, rank: int) -> None:
    """The run lies where rank 0 is, and nowhere else."""
    with World.opened() as world:
        about = subject_among(world, str(out / f"run-{rank}"), which="last")
        known = identity(about.model, about.data.test)
        world.agree("the subject", {**known, "threats": about.threats, "name": about.name, **about.about})


def everything(out: Path) -> dict[str, Any]:
    """Every scenario, by name: the codes of all ranks, and what they said."""
    found: dict[str, Any] = {}

    def let(name: str, size: int, body: Callable[[int], object]) -> None:
        found[name] = ranks(size, body, out / "said" / name)

    measured(out / "serial")
    measured(out / "half" / "0", probes=[PGD], n=12)  # one process began
    for name, size in (("two", 2), ("three", 3), ("half", 2)):
        let(name, size, partial(evaluated, out / name))
    let("other network", 2, partial(other_network, out / "other network"))
    let("workers", 2, lambda rank: evaluated(out / "workers", rank, workers=2))
    let("examples", 2, lambda rank: evaluated(out / "examples", rank, keep_examples=True))
    a_run(out / "run" / "run-0")
    let("run", 2, partial(of_a_run, out / "run"))
    assessment.SAVE_AFTER = assessment.TELL_AFTER = -1.0
    sharing.OFTEN = 0.0
    let("killed", 2, partial(struck, out / "killed", signal.SIGKILL))
    let("stopped", 2, partial(struck, out / "stopped", signal.SIGTERM))
    for name in ("killed", "stopped"):  # one process goes on
        lines = Ledger(24, out / name / "0").lines(NATURAL)
        found[f"{name}, kept"] = int(lines.settled.sum())
        measured(out / name / "0", model=taught(Slow))
    measured(out / "slow serial", model=taught(Slow))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(everything(folder)))
