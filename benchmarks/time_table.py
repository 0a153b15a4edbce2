"""The papers' time table in small: TRADES, Generalist-D one learner after the other, and both side by side.

CVPR appendix A.4, Table 4 compares training times at about the same natural accuracy: TRADES with a weight on
robustness chosen for that, Generalist in one process, and with a process for every learner. Here the same is
done with embedded recipes, every process with one thread; the rows take turns, so that a machine that slows
down does so for all. Seconds are of the whole command, from the start of Python to the last file; a start
that loads no data is timed beside, to be taken off in the mind. The two Generalists must end with the same
bits, which is checked.

    python benchmarks/time_table.py                        # some minutes on two idle cores
    python benchmarks/time_table.py --set epochs=1 --set model.width=4 --rounds 1       # tries it
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

from allrounder import evaluate, load
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.training.run import Run

PROBE = "pgd-20@Linf:0.1"


@dataclass
class Row:
    """A command, and what it took each time."""

    label: str
    recipe: str
    sets: list[str]
    workers: int = 1
    seconds: list[float] = field(default_factory=list[float])

    def train(self, out: Path) -> None:
        """Run the command into a new folder."""
        words = [self.recipe, "--threads", "1", "--workers", str(self.workers), "--out", str(out)]
        words += [word for text in self.sets for word in ("--set", text)]
        self.seconds.append(timed("train", *words))


def timed(*words: str) -> float:
    """The seconds of a command of this package with one thread."""
    began = time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "allrounder", *words], env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def measured(out: Path) -> Outcome:
    """How the selected weights do on the test images."""
    return evaluate(load(out, "best"), Run(out).recipe.read_data(), probes=[PROBE], check="note")


def check_same(one: Path, other: Path) -> None:
    """Both ways to train a Generalist come to the same weights."""
    (a, _), (b, _) = Run(one).weights(), Run(other).weights()
    if any(not torch.equal(tensor, b[name]) for name, tensor in a.items()):
        sys.exit("the processes came to other weights than a single one, which is a defect")


def main() -> None:
    """Print a line for every row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beta", type=float, default=2.0, help="of TRADES; smaller is more accurate")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="A.B=C", help="for all rows"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    duo = "embedded/generalist-d-nt-linf"
    matched = [*chosen.sets, f"task.linf.objective.beta={chosen.beta}"]
    rows = [
        Row(f"TRADES (lambda = {chosen.beta:g})", "embedded/trades-1", matched),
        Row("Generalist-D, serial", duo, chosen.sets),
        Row("Generalist-D, 2 processes", duo, chosen.sets, workers=2),
    ]
    with tempfile.TemporaryDirectory(prefix="allrounder-") as folder:
        starts = [timed("--version") for _ in range(chosen.rounds)]
        places: dict[str, Path] = {}
        for number in range(chosen.rounds):
            for row in rows:
                places[row.label] = Path(folder) / f"{number} {row.label}".replace(" ", "-")
                row.train(places[row.label])
        outcomes = [measured(places[row.label]) for row in rows]
        check_same(places[rows[1].label], places[rows[2].label])
    epochs, cores = Recipe.load(duo, chosen.sets).epochs, len(os.sched_getaffinity(0))
    print(f"{epochs} epochs, {chosen.rounds} rounds, one thread a process, {cores} cores,")
    print(f"torch {torch.__version__}; starting Python takes {min(starts):.1f} s of every row")
    print("row | natural | PGD-20 | seconds: least | median | all | of TRADES")
    for row, outcome in zip(rows, outcomes, strict=True):
        shares = f"{100 * outcome.accuracy():.2f} | {100 * outcome.accuracy('pgd-20', 'Linf'):.2f}"
        told = ", ".join(f"{seconds:.1f}" for seconds in row.seconds)
        ratio = min(row.seconds) / min(rows[0].seconds)
        middle = statistics.median(row.seconds)
        print(f"{row.label} | {shares} | {min(row.seconds):.1f} | {middle:.1f} | {told} | {ratio:.2f}")


if __name__ == "__main__":
    main()
