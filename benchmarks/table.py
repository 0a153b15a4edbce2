"""One table of all speed goals, each with what was measured now: `make bench`.

    python benchmarks/table.py                       # half an hour on two idle cores
    python benchmarks/table.py --quick               # a few minutes, with short budgets and few rounds
    python benchmarks/table.py --only step start     # some of the groups of rows

Rows are ratios within one run, because absolute times vary with the load of the machine. All are ratios of
CPU seconds of one thread, except AutoAttack in two processes, which needs the clock and an idle machine.
AutoAttack needs the extra `oracle` and test images of CIFAR-10; without them its rows are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
AUTOATTACK_BUDGETS = {
    False: ("--images", "200", "--steps", "100", "--fab-steps", "20", "--targets", "9", "--queries", "500"),
    True: ("--images", "16", "--steps", "10", "--fab-steps", "5", "--targets", "2", "--queries", "50"),
}
"""The options of both sides, by whether the table is quick."""


@dataclass(frozen=True)
class Row:
    """A line of the table. A goal is the least value, or the largest one if `at_most`."""

    name: str
    value: float | None
    goal: float | None = None
    at_most: bool = False
    note: str = ""

    def cells(self) -> list[str]:
        """The texts of the line: name, value, goal, verdict and note."""
        if self.value is None:
            return [self.name, "-", self._goal(), "skipped", self.note]
        verdict = "no goal"
        if self.goal is not None:
            reached = self.value <= self.goal if self.at_most else self.value >= self.goal
            verdict = "reached" if reached else "missed"
        return [self.name, f"{self.value:.2f}", self._goal(), verdict, self.note]

    def _goal(self) -> str:
        return "-" if self.goal is None else f"{'at most' if self.at_most else 'at least'} {self.goal:g}"


def run_benchmark(name: str, *arguments: str) -> list[dict[str, Any]]:
    """Run another benchmark, and return the objects that it prints."""
    command = [sys.executable, str(FOLDER / name), *arguments]
    print("running", " ".join([name, *arguments]), file=sys.stderr, flush=True)
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stderr}")
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def crafting_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Crafting in the released code over ours, without and with fast convolutions."""
    for row in run_benchmark("crafting.py", "--json", "--rounds", "3" if options.quick else "9"):
        for column in ("released / ours", "released / fast"):
            yield Row(f"crafting, {row['network']}, batch {row['batch']}: {column}", row[column])


def step_rows(options: argparse.Namespace) -> Iterator[Row]:
    """A training step: the released code over ours, also with fast convolutions, and ours over its passes."""
    for network, batch, rounds in (
        ("small-cnn", 64, 9),
        ("resnet18", 16 if options.quick else 64, 3),
        ("wrn", 64, 3),
    ):
        given = ["--network", network, "--batch", str(batch), "--variant", "d", "--no-processes", "--json"]
        rounds = "1" if options.quick else str(rounds)
        for row in run_benchmark("train_step.py", *given, "--rounds", rounds, "--fast-conv"):
            name = f"training step, {network}, batch {batch}"
            for column in ("released / ours", "released / fast"):
                yield Row(f"{name}: {column}", row[column], 2.0)
            for column in ("ours / passes", "fast / passes"):
                yield Row(f"{name}: {column}", 1 + row[f"{column} - 1"], 1.05, True)


def autoattack_rows(options: argparse.Namespace) -> Iterator[Row]:
    """AutoAttack of the public implementation over ours: per core, in two processes, and memory."""
    goals = (("per core", 2.0), ("two processes / two threads", 2.5))
    reason = ""
    if find_spec("pyautoattack") is None:
        reason = "pyautoattack is not installed: pip install --no-deps pyautoattack"
    elif not Path(options.data).is_file():
        reason = f"no CIFAR-10 test images at {options.data}: give --data"
    if reason:
        yield from (Row(f"AutoAttack, ResNet-18, {name}", None, goal, note=reason) for name, goal in goals)
        return
    budgets = AUTOATTACK_BUDGETS[options.quick]
    given = ["resnet18", "--data", options.data, "--threat", "Linf:2/255", "--attacks", "aa", "--both-cores"]
    given += ["--json", *budgets]
    rows = run_benchmark("autoattack.py", *given)
    images = budgets[budgets.index("--images") + 1]
    for (name, goal), row in zip(goals, rows, strict=True):
        disagreements = sum(row["fooled by one only"])
        note = f"{disagreements} of {images} images differ" if disagreements else "equal verdicts"
        yield Row(f"AutoAttack, ResNet-18, {name}: public / ours", row["faster"], goal, note=note)
    for (name, _), row in zip(goals, rows, strict=True):
        ours, theirs = row["MB"]
        note = f"{ours:.0f} against {theirs:.0f} MB"
        yield Row(f"AutoAttack, ResNet-18, {name}: memory, ours / public", ours / theirs, 1.3, True, note)


def start_rows(options: argparse.Namespace) -> Iterator[Row]:
    """From `allrounder train` to the end of the first step, over the bare imports and data reading."""
    (row,) = run_benchmark("first_step.py", "--json", "--rounds", "1" if options.quick else "5")
    note = f"{row['begin / bare']:.2f} until the first step begins"
    yield Row("start of a run: first step / bare imports and data", row["end / bare"], 1.5, True, note)


GROUPS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "crafting": crafting_rows,
    "step": step_rows,
    "autoattack": autoattack_rows,
    "start": start_rows,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short budgets and few rounds")
    parser.add_argument("--data", default="../shared/data/cifar10_test_head.npz", help="CIFAR-10 test images")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups of rows")
    options = parser.parse_args()
    rows = [row for name, measure in GROUPS.items() if name in options.only for row in measure(options)]
    lines = [["row", "ratio", "goal", "verdict", "note"], *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, torch {torch.__version__}{', quick' * options.quick}")
    for line in lines:
        print(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
