"""Evaluations in several processes, and what may happen to them. Run as a module, it runs all scenarios below
a folder, with ranks forked from one process, and writes the exit codes and errors of all ranks to
results.json."""

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

from allrounder.cli.evaluate import TargetOptions
from allrounder.cli.target import load_target_on_all_ranks
from allrounder.distributed import World
from allrounder.evaluation import job, runner
from allrounder.evaluation.identity import fingerprint_model_and_data
from allrounder.evaluation.store import ResultStore
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import NATURAL
from allrounder.rng import Rng
from allrounder.system.progress import ProgressEvent
from allrounder.training.data import load_data
from allrounder.training.run import Run
from tests.distributed.ranks import run_ranks, wait_for
from tests.support.evaluations import PGD, Slow, run_evaluation, trained_network

CHECKED: dict[str, Any] = {"check": "note", "probes": [PGD]}
"""With the preflight, the check for masked gradients, and confidences."""


def evaluate_rank(out: Path, rank: int, **options: Any) -> None:
    """Evaluate on one rank; each rank has its own folder, as on machines without a shared disk."""
    with World.open() as world:
        run_evaluation(out / str(rank), world=world, **options).save(out / f"returned-{rank}.safetensors")


def signal_rank_1(out: Path, number: int, rank: int) -> None:
    """Send a signal to rank 1 during an attack, after rank 0 has stored what rank 1 sent before."""

    def strike(event: ProgressEvent) -> None:
        if rank == 1 and event.stage == str(PGD) and event.done < event.total:
            wait_for(out / "stored")
            os.kill(os.getpid(), number)
        if rank == 0 and bool(ResultStore(24, out / "0").results(NATURAL).done.sum() == 24):
            (out / "stored").touch()

    out.mkdir(exist_ok=True)
    evaluate_rank(out, rank, model=trained_network(Slow), progress=strike)


def evaluate_other_network(out: Path, rank: int) -> None:
    model = trained_network()
    if rank == 1:
        nn.init.zeros_(model.linear.weight)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    evaluate_rank(out, rank, model=model)


def make_run(folder: Path) -> None:
    """Write the folder of a run that was never trained."""
    recipe = Recipe.load("embedded/nt", ["model.width=4", "seed=3"])
    data = load_data(recipe)
    with Rng(3).seed_global():
        model = recipe.model.build(len(data.classes), data.shape)
    metadata = {"classes": list(data.classes), "shape": list(data.shape)}
    run = Run.open_or_create(folder, recipe, resume=False)
    run.save_weights("last", 1, {"global": weights_of(model)}, metadata)


def evaluate_run(out: Path, rank: int) -> None:
    """Load a run that only rank 0 can read."""
    with World.open() as world:
        options = TargetOptions(target=str(out / f"run-{rank}"), which="last")
        target = load_target_on_all_ranks(world, options)
        identity = fingerprint_model_and_data(target.model, target.data.test)
        world.assert_equal_across_ranks(
            "the target", {**identity, "threats": target.threats, "name": target.name, **target.about}
        )


def run_all(out: Path) -> dict[str, Any]:
    """Run every scenario; the exit codes and errors of all ranks, by name."""
    results: dict[str, Any] = {}

    def run(name: str, size: int, body: Callable[[int], object]) -> None:
        results[name] = run_ranks(size, body, out / "errors" / name)

    run_evaluation(out / "serial")
    run_evaluation(out / "half" / "0", probes=[PGD], n=12)  # one process starts
    for name, size in (("two", 2), ("three", 3), ("half", 2)):
        run(name, size, partial(evaluate_rank, out / name))
    run_evaluation(out / "checked serial", **CHECKED)
    run("checked", 2, lambda rank: evaluate_rank(out / "checked", rank, **CHECKED))
    run("other network", 2, partial(evaluate_other_network, out / "other network"))
    run("workers", 2, lambda rank: evaluate_rank(out / "workers", rank, workers=2))
    run("examples", 2, lambda rank: evaluate_rank(out / "examples", rank, keep_examples=True))
    make_run(out / "run" / "run-0")
    run("run", 2, partial(evaluate_run, out / "run"))
    runner.SAVE_INTERVAL = runner.REPORT_INTERVAL = -1.0
    job.POLL_SECONDS = 0.0
    run("killed", 2, partial(signal_rank_1, out / "killed", signal.SIGKILL))
    run("stopped", 2, partial(signal_rank_1, out / "stopped", signal.SIGTERM))
    for name in ("killed", "stopped"):  # one process resumes
        natural = ResultStore(24, out / name / "0").results(NATURAL)
        results[f"{name}, kept"] = int(natural.done.sum())
        run_evaluation(out / name / "0", model=trained_network(Slow))
    run_evaluation(out / "slow serial", model=trained_network(Slow))
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(run_all(folder)))
