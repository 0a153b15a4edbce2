"""The cost of a training step: the released code, ours, ours with a process per learner, and the bare passes.

Everything is measured in turns within one run, on one thread each. Only ratios are reported, because absolute
times vary with the load of the machine. All but the processes is measured in CPU seconds; the processes are
measured in wall time and need an idle machine.

released / ours     the speed-up over the released code; the aim is 2.0
released / fast     the same with `compute.fast_conv = true`, with --fast-conv; the aim is 2.0
ours / passes - 1   what our step adds to the forward and backward passes of its learners on the same folded
                    network; the aim is 3% for batches of 32 and more
fast / passes - 1   the same with fast convolutions, over the passes without them
plain / passes - 1  what the updates of the attack and of the optimiser add, in a loop without averages,
                    mixture, checks and logs
ideal / processes   the ideal time with a process per learner (the slowest learner alone, or the total divided
                    by the cores) over the measured one; the aim is 85%
one / two           the limit of the machine: the time of one process alone over that of two equal ones at the
                    same time, which only share memory and caches
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from bare_passes import BarePasses
from harness import (
    SHAPES,
    VARIANTS,
    build_trainer,
    cpu_seconds,
    expected_bytes,
    measure_in_turns,
    median_ratio,
    network_bytes,
    new_bytes,
    paper_recipe,
    peak_bytes,
    synthetic,
    tensor_storages,
)
from learner_processes import LearnerProcesses
from released import ReleasedTrainer
from torch import nn

from allrounder.system.memory import keep_freed_memory
from allrounder.training.setup import build_initial_model
from allrounder.training.trainer import Trainer

MIN_AIMS = {"released / ours": 2.0, "released / fast": 2.0, "ideal / processes": 0.85}
MAX_AIMS = {"ours / passes - 1": 0.03}
PERCENTAGES = (
    "ideal / processes",
    "one / two",
    "ours / passes - 1",
    "plain / passes - 1",
    "fast / passes - 1",
)
"""Columns that are printed in percent."""
BATCH_SIZES = {"small-cnn": (32, 64), "resnet18": (16, 32), "wrn": (16, 32), "wrn-wide": (16, 32)}
STEPS_PER_ROUND = {"small-cnn": 5, "resnet18": 1, "wrn": 1, "wrn-wide": 1}
"""Short steps are repeated, because the first of them finds the caches filled by the other variants."""


def measure(
    variant: str, kind: str, batch: int, rounds: int, *, processes: bool, memory: bool, fast_conv: bool
) -> dict[str, Any]:
    """One row of the table."""
    recipe = paper_recipe(variant, kind, batch)
    data = synthetic(SHAPES[kind], batch)

    def start() -> nn.Module:
        return build_initial_model(recipe, None, data)

    row: dict[str, Any] = {"network": kind, "variant": variant, "batch": batch, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        before = tensor_storages()
        trainer = build_trainer(recipe, data, Path(folder) / "plain")
        steps = count(1)
        if memory:
            row |= measure_memory(trainer, lambda: trainer.fit(until=next(steps)), before)
        images = trainer.learners[0].prepare_batch(trainer.batches.at(1, 1), 1)
        released = ReleasedTrainer(recipe.tasks, start())
        passes = BarePasses(recipe, start, images.x, images.y)
        times = STEPS_PER_ROUND[kind]
        runs: dict[str, Callable[[], float]] = {
            "released": lambda: cpu_seconds(lambda: released.step(images.x, images.y), times),
            "ours": lambda: training_seconds(lambda: trainer.fit(until=next(steps)), times),
            "passes": lambda: training_seconds(passes.passes_only, times),
            "plain": lambda: training_seconds(passes.plain_step, times),
        }
        if fast_conv:
            before, fast_steps = tensor_storages(), count(1)
            fast_recipe = paper_recipe(variant, kind, batch, fast_conv=True)
            fast = build_trainer(fast_recipe, data, Path(folder) / "fast")
            if memory:
                held = measure_memory(fast, lambda: fast.fit(until=next(fast_steps)), before)
                row["fast, MB held"] = held["MB held"]
            runs["fast"] = lambda: training_seconds(lambda: fast.fit(until=next(fast_steps)), times)
        seconds = measure_in_turns(runs, rounds)
        if fast_conv:
            row["released / fast"] = median_ratio(seconds["released"], seconds["fast"])
            row["ours / fast"] = median_ratio(seconds["ours"], seconds["fast"])
            row["fast / passes - 1"] = median_ratio(seconds["fast"], seconds["passes"]) - 1
    row["released / ours"] = median_ratio(seconds["released"], seconds["ours"])
    row["ours / passes - 1"] = median_ratio(seconds["ours"], seconds["passes"]) - 1
    row["plain / passes - 1"] = median_ratio(seconds["plain"], seconds["passes"]) - 1
    row["ours, ms"] = 1000 * statistics.median(seconds["ours"])
    if processes:
        # The first learner twice: two equal processes.
        for name, ranks in (("ideal / processes", None), ("one / two", (0, 0))):
            learners = LearnerProcesses(variant, kind, batch, ranks)
            runs = {"ideal": learners.ideal_seconds, "measured": learners.concurrent_seconds}
            seconds = measure_in_turns(runs, rounds)
            learners.stop()
            row[name] = median_ratio(seconds["ideal"], seconds["measured"])
    return row


def training_seconds(run: Callable[[], object], times: int) -> float:
    """The CPU seconds of a call inside a training, where freed memory stays with the process. A first call
    allocates it."""
    with keep_freed_memory():
        run()
        return cpu_seconds(run, times)


def measure_memory(trainer: Trainer, step: Callable[[], None], before: Mapping[int, int]) -> dict[str, Any]:
    """The bytes that a trainer holds between steps and the additional peak of a step; fails if they are more
    than expected."""
    step()
    held = new_bytes(before)
    expected = expected_bytes(trainer)
    assert held == expected, f"the trainer holds {held} bytes, expected {expected}"
    peak_bytes(step)  # the profiler misses the release of what was allocated before it, such as old filters
    peak = peak_bytes(step)
    batch = trainer.batches.at(1, 1)
    largest = max(peak_bytes(lambda learner=learner: learner.step(batch, 1)) for learner in trainer.learners)
    # The augmented images are kept for the learners that share them.
    allowed = largest + 2 * batch.x.nbytes
    assert peak <= allowed, f"a step takes {peak} additional bytes, expected at most {allowed}"
    return {"MB held": held / 1e6, "networks held": held / network_bytes(trainer), "MB peak": peak / 1e6}


def format_cell(row: dict[str, Any], name: str) -> str:
    """A cell of the table, with an exclamation mark if an aim is missed."""
    if name not in row:
        return "-"
    missed = row[name] < MIN_AIMS.get(name, row[name]) or row[name] > MAX_AIMS.get(name, row[name])
    text = f"{row[name]:.1%}" if name in PERCENTAGES else f"{row[name]:.2f}"
    return text + "!" * missed


def main() -> None:
    """Print one table; an exclamation mark is a missed aim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SHAPES, action="append", help="all by default")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="both by default")
    parser.add_argument("--batch", type=int, action="append", help=f"by default {BATCH_SIZES}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-processes", action="store_true", help="skip the process per learner")
    parser.add_argument("--no-memory", action="store_true", help="skip the memory")
    parser.add_argument("--fast-conv", action="store_true", help="also train with fast convolutions")
    parser.add_argument("--json", action="store_true", help="print one object per row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = (
        *MIN_AIMS,
        "one / two",
        *MAX_AIMS,
        "plain / passes - 1",
        "ours, ms",
        "MB held",
        "networks held",
        "MB peak",
        "ours / fast",
        "fast / passes - 1",
        "fast, MB held",
    )
    if not options.json:
        print(f"1 thread, torch {torch.__version__}, {options.rounds} rounds; ! is a missed aim")
        print(" | ".join(("network", "variant", "batch", *names)))
    for kind in options.network or SHAPES:
        for batch in options.batch or BATCH_SIZES[kind]:
            for variant in options.variant or VARIANTS:
                row = measure(
                    *(variant, kind, batch, options.rounds),
                    processes=not options.no_processes,
                    memory=not options.no_memory,
                    fast_conv=options.fast_conv,
                )
                cells = (kind, variant, str(batch), *(format_cell(row, name) for name in names))
                print(json.dumps(row) if options.json else " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
