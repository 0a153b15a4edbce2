"""What a training step costs: the released code's, ours, ours in a process per learner, and the bare passes.

Everything is taken in turns within one run, on one thread each, and only ratios are told, because machines
are shared and noisy. All but the processes is measured in processor seconds; these need the clock, and a
machine that is quiet.

released / ours     how much faster we are; the aim is 2.0
ours / passes - 1   what ours adds to the forward and backward passes that its learners cannot do without, on
                    the same folded network; the aim is 3% at batches of 32 and more
plain / passes - 1  what a loop without averages, mixture, checks and logs would add: the steps of the attack
                    and of the optimiser
ideal / processes   the ideal is the longest learner alone, or all of them divided by the cores; the aim is
                    85%
one / two           what the machine allows: one process alone over two equal ones at once, which share
                    nothing but its memory and its caches
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from crew import Crew
from floor import Passes
from machines import (
    SHAPES,
    VARIANTS,
    cpu_seconds,
    expected_bytes,
    in_turns,
    median_ratio,
    network_bytes,
    newly_held,
    peak_bytes,
    recipe_of,
    storages,
    synthetic,
    training_of,
)
from released import Released
from torch import nn

from allrounder.training.starting import starting_network
from allrounder.training.training import Training

LEAST = {"released / ours": 2.0, "ideal / processes": 0.85}
MOST = {"ours / passes - 1": 0.03}
"""The aims."""
SHARES = ("ideal / processes", "one / two", "ours / passes - 1", "plain / passes - 1")
"""What is told in percent."""
SIZES = {"small-cnn": (32, 64), "resnet18": (16, 32)}
REPEATS = {"small-cnn": 5, "resnet18": 1}
"""Steps in a turn: short ones would mostly find the caches full of what the others left."""


def measure(variant: str, kind: str, batch: int, rounds: int, processes: bool) -> dict[str, Any]:
    """One row of the table."""
    recipe, data = recipe_of(variant, kind, batch), synthetic(SHAPES[kind], batch)

    def start() -> nn.Module:
        return starting_network(recipe, None, data)

    row: dict[str, Any] = {"network": kind, "variant": variant, "batch": batch, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        before = storages()
        ours, steps = training_of(recipe, data, Path(folder)), iter(range(1, 10**9))
        row |= memory(ours, lambda: ours.step(next(steps)), before)
        seen = ours.learners[0].prepare(ours.batches.at(1, 1), 1)
        released, passes = Released(recipe.tasks, start()), Passes(recipe, start, seen.x, seen.y)
        times = REPEATS[kind]
        found = in_turns(
            {
                "released": lambda: cpu_seconds(lambda: released.step(seen.x, seen.y), times),
                "ours": lambda: cpu_seconds(lambda: ours.step(next(steps)), times),
                "passes": lambda: cpu_seconds(passes.bare, times),
                "plain": lambda: cpu_seconds(passes.plain, times),
            },
            rounds,
        )
    row["released / ours"] = median_ratio(found["released"], found["ours"])
    row["ours / passes - 1"] = median_ratio(found["ours"], found["passes"]) - 1
    row["plain / passes - 1"] = median_ratio(found["plain"], found["passes"]) - 1
    row["ours, ms"] = 1000 * statistics.median(found["ours"])
    if processes:
        # The first learner twice: two that have nothing to do with each other.
        for name, ranks in (("ideal / processes", None), ("one / two", (0, 0))):
            crew = Crew(variant, kind, batch, ranks)
            told = in_turns({"ideal": crew.ideal, "measured": crew.measured}, rounds)
            crew.stop()
            row[name] = median_ratio(told["ideal"], told["measured"])
    return row


def memory(machines: Training, step: Callable[[], None], before: Mapping[int, int]) -> dict[str, Any]:
    """What the machines hold between two steps and what a step takes on top, which must be what they may."""
    step()
    held, allowed = newly_held(before), expected_bytes(machines)
    assert held == allowed, f"the machines hold {held} bytes, expected {allowed}"
    on_top, batch = peak_bytes(step), machines.batches.at(1, 1)
    alone = max(peak_bytes(lambda one=one: one.step(batch, 1)) for one in machines.learners)
    # While others learn, the augmented images wait for those who see them too.
    waiting = 2 * batch.x.nbytes
    assert on_top <= alone + waiting, (
        f"a step takes {on_top} bytes on top, expected {alone + waiting} at most"
    )
    held_by = held / network_bytes(machines)
    return {"MB held": held / 1e6, "networks held": held_by, "MB on top": on_top / 1e6}


def told(row: dict[str, Any], name: str) -> str:
    """A cell, with a mark where an aim is missed."""
    if name not in row:
        return "-"
    missed = row[name] < LEAST.get(name, row[name]) or row[name] > MOST.get(name, row[name])
    shown = f"{row[name]:.1%}" if name in SHARES else f"{row[name]:.2f}"
    return shown + "!" * missed


def main() -> None:
    """Print one table; an exclamation mark is a missed aim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SHAPES, action="append", help="by default both")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="by default both")
    parser.add_argument("--batch", type=int, action="append", help=f"by default {SIZES}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-processes", action="store_true", help="leave out the process per learner")
    parser.add_argument("--json", action="store_true", help="one object per row")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = (
        *LEAST,
        "one / two",
        *MOST,
        "plain / passes - 1",
        "ours, ms",
        "MB held",
        "networks held",
        "MB on top",
    )
    if not chosen.json:
        print(f"1 thread, torch {torch.__version__}, {chosen.rounds} rounds; ! is a missed aim")
        print(" | ".join(("network", "variant", "batch", *names)))
    for kind in chosen.network or SHAPES:
        for batch in chosen.batch or SIZES[kind]:
            for variant in chosen.variant or VARIANTS:
                row = measure(variant, kind, batch, chosen.rounds, not chosen.no_processes)
                cells = (kind, variant, str(batch), *(told(row, name) for name in names))
                print(json.dumps(row) if chosen.json else " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
