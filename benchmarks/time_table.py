"""The papers' table of training times on a small scale: TRADES, and Generalist-D in one and in two processes.

CVPR appendix A.4, Table 4 compares training times at about the same natural accuracy: TRADES with a matching
weight on robustness, Generalist in one process, and Generalist with one process per learner. This benchmark
does the same with embedded recipes and one thread per process. The rows are measured in turns, so that
changes in the load of the machine affect all of them. Seconds are those of the whole command, from the start
of Python to the last file; the time of a start without training is reported separately. It is checked that
both ways to train Generalist give bit-for-bit the same weights.

    python benchmarks/time_table.py                        # a few minutes on two idle cores
    python benchmarks/time_table.py --set epochs=1 --set model.width=4 --rounds 1       # a quick try
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from allrounder import EvalOptions, evaluate, load
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.training.run import Run

PROBE = "pgd-20@Linf:0.1"


@dataclass
class Row:
    """A training command and its measured seconds."""

    label: str
    recipe: str
    sets: list[str]
    workers: int = 1
    seconds: list[float] = field(default_factory=list[float])

    def train(self, out: Path) -> None:
        """Run the command with a new output folder and record its time."""
        arguments = [self.recipe, "--threads", "1", "--workers", str(self.workers), "--out", str(out)]
        arguments += [word for text in self.sets for word in ("--set", text)]
        self.seconds.append(time_command("train", *arguments))


def time_command(*arguments: str) -> float:
    """The seconds of an `allrounder` command with one thread."""
    begin = time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "allrounder", *arguments], env=env, capture_output=True, text=True
    )
    if process.returncode != 0:
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return time.perf_counter() - begin


def evaluate_run(out: Path) -> Outcome:
    """The outcome of the selected weights on the test images."""
    options = EvalOptions(check="note")
    return evaluate(load(out, "best"), Run(out).recipe.data.load(), probes=[PROBE], options=options)


def check_equal_weights(first: Path, second: Path) -> None:
    """Exit if two runs have different weights."""
    (a, _), (b, _) = Run(first).weights(), Run(second).weights()
    if any(not torch.equal(tensor, b[name]) for name, tensor in a.items()):
        sys.exit("two processes gave other weights than one, which is a bug")


def main() -> None:
    """Print one line per row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beta", type=float, default=2.0, help="weight on robustness of TRADES")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="A.B=C", help="for all rows"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    generalist = "embedded/generalist-d-nt-linf"
    trades_sets = [*options.sets, f"task.linf.objective.beta={options.beta}"]
    rows = [
        Row(f"TRADES (lambda = {options.beta:g})", "embedded/trades-1", trades_sets),
        Row("Generalist-D, serial", generalist, options.sets),
        Row("Generalist-D, 2 processes", generalist, options.sets, workers=2),
    ]
    with tempfile.TemporaryDirectory(prefix="allrounder-") as folder:
        starts = [time_command("--version") for _ in range(options.rounds)]
        folders: dict[str, Path] = {}
        for number in range(options.rounds):
            for row in rows:
                folders[row.label] = Path(folder) / f"{number} {row.label}".replace(" ", "-")
                row.train(folders[row.label])
        outcomes = [evaluate_run(folders[row.label]) for row in rows]
        check_equal_weights(folders[rows[1].label], folders[rows[2].label])
    epochs = Recipe.load(generalist, options.sets).epochs
    cores = len(os.sched_getaffinity(0))
    print(f"{epochs} epochs, {options.rounds} rounds, one thread per process, {cores} cores,")
    print(f"torch {torch.__version__}; {min(starts):.1f} s of every row are the start of Python")
    print("row | natural | PGD-20 | seconds: minimum | median | all | relative to TRADES")
    for row, outcome in zip(rows, outcomes, strict=True):
        accuracies = f"{100 * outcome.accuracy():.2f} | {100 * outcome.accuracy('pgd-20', 'Linf'):.2f}"
        seconds = ", ".join(f"{value:.1f}" for value in row.seconds)
        ratio = min(row.seconds) / min(rows[0].seconds)
        median = statistics.median(row.seconds)
        print(f"{row.label} | {accuracies} | {min(row.seconds):.1f} | {median:.1f} | {seconds} | {ratio:.2f}")


if __name__ == "__main__":
    main()
