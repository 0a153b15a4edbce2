"""A long run of one process: train, stop, resume and evaluate again and again, and look for growth.

    python benchmarks/soak.py
    python benchmarks/soak.py --minutes 10

Every round trains a small Generalist with validations and checkpoints, stops it in the middle by an error,
resumes it, evaluates it with a results folder, reads the results, and deletes its folder. Every second round
reads image files through decoder processes. After a round, the resident memory, open file descriptors, child
processes, threads and temporary files of the process are counted.

The rule: the first half of the rounds warms up. Over the second half, growth is the Theil-Sen slope (the
median of the slopes between all pairs of rounds) times the number of rounds. Memory may grow by 16 MiB, and
nothing else may grow by one. The exit code is 1 if anything grows more, or if there are fewer than 8 rounds.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image

import allrounder as ar

RECIPE = "embedded/generalist-d-nt-linf"
SETTINGS = (
    "epochs=2",
    "train_images=192",
    "batch_size=32",
    "model.width=4",
    "validation.images=32",
    "validation.every='50%'",
    "checkpoint='25%'",
    "task.linf.objective.attack.steps=2",
)
PROBES = ("pgd-3@Linf:0.1", "mim-3@L2:1.5")
IMAGES_PER_CLASS, SIDE, STOP_STEP = 20, 28, 5
MIN_ROUNDS = 8
MAX_PAIRED = 400
"""Rounds of which all pairs are compared; of more, every n-th is taken."""
GAUGES: dict[str, tuple[str, float]] = {
    "memory": ("MiB", 16.0),
    "descriptors": ("", 1.0),
    "children": ("", 1.0),
    "threads": ("", 1.0),
    "files": ("", 1.0),
}
"""Unit of every gauge, and the growth that is too much."""


@final
class Stopped(Exception):
    """Ends a training in the middle."""


@final
class StopAt:
    """A listener that raises after a step."""

    def begin(self, total: int, done: int) -> None:
        """Ignore the start."""

    def step(self, t: int) -> None:
        """Raise after the step."""
        if t == STOP_STEP:
            raise Stopped

    def log(self, text: str) -> None:
        """Ignore messages."""


def read_gauges(temporary: Path) -> dict[str, float]:
    """What the process uses now; needs Linux."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = [Path(path, "children") for path in Path("/proc/self/task").iterdir()]
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": sum(len(path.read_text().split()) for path in children if path.exists()),
        "threads": len(os.listdir("/proc/self/task")),
        "files": sum(1 for _ in temporary.rglob("*")),
    }


def growth(samples: Sequence[float]) -> float:
    """The Theil-Sen slope per sample, times the number of samples."""
    step = -(-len(samples) // MAX_PAIRED)
    points = list(enumerate(samples))[::step]
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(points, 2)]
    return statistics.median(slopes) * len(samples)


def find_growth(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The growth of every gauge over the second half of the rounds."""
    half = rounds[len(rounds) // 2 :]
    return {name: growth([sample[name] for sample in half]) for name in GAUGES}


def write_images(folder: Path) -> None:
    """Write a folder of two classes of greyscale images."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("dark", "light"):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(IMAGES_PER_CLASS * (6 if split == "train" else 1)):
                pixels = rng.integers(0, 200, (SIDE, SIDE), dtype=np.uint8) + 55 * (name == "light")
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def run_round(number: int, images: Path, folder: Path) -> None:
    """Train, stop, resume and evaluate once in a new folder, and delete it."""
    settings = list(SETTINGS)
    if number % 2:
        settings.append(f"data={{kind='folder', path='{images}', channels=1, workers=2}}")
    try:
        ar.train(RECIPE, folder, overrides=settings, progress=StopAt())
        raise AssertionError(f"the training did not stop at step {STOP_STEP}")
    except Stopped:
        pass
    run = ar.train(RECIPE, folder, overrides=settings, resume=True, progress=False)
    data = run.recipe.data.load()
    options = ar.EvalOptions(check="note")
    network = ar.load(run)
    for n in (16, 32):  # the second call reads the results of the first
        ar.evaluate(network, data, probes=PROBES, n=n, out=folder / "eval", options=options)
    shutil.rmtree(folder)


def soak(minutes: float, folder: Path, report: Callable[[str], None] = print) -> list[dict[str, float]]:
    """Run rounds for some minutes; return the gauges after each of them."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    write_images(folder / "images")
    previous, tempfile.tempdir = tempfile.tempdir, str(temporary)
    rounds: list[dict[str, float]] = []
    begin = last = time.monotonic()
    report("minutes rounds " + " ".join(f"{name:>11}" for name in GAUGES))
    try:
        while time.monotonic() - begin < 60 * minutes or len(rounds) < MIN_ROUNDS:
            run_round(len(rounds), folder / "images", folder / "run")
            rounds.append(read_gauges(temporary))
            if time.monotonic() - last > 6 * minutes or len(rounds) == 1:
                last = time.monotonic()
                cells = " ".join(f"{rounds[-1][name]:11.1f}" for name in GAUGES)
                report(f"{(last - begin) / 60:7.1f} {len(rounds):6} {cells}")
    finally:
        tempfile.tempdir = previous
    return rounds


def print_result(rounds: Sequence[dict[str, float]]) -> bool:
    """Print a table of the growth; return whether nothing grows."""
    grown = find_growth(rounds)
    second = len(rounds) - len(rounds) // 2
    print(f"{len(rounds)} rounds; growth over the last {second} of them")
    print(f"{'gauge':12} {'first':>9} {'middle':>9} {'last':>9} {'growth':>9} {'limit':>9}")
    for name, (unit, limit) in GAUGES.items():
        values = [rounds[i][name] for i in (0, len(rounds) // 2, -1)]
        cells = " ".join(f"{value:9.1f}" for value in [*values, grown[name], limit])
        print(f"{name:12} {cells} {unit:4}{' GROWS' if grown[name] >= limit else ''}")
    return all(grown[name] < limit for name, (_, limit) in GAUGES.items())


def main() -> int:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="allrounder-soak-", dir=options.folder) as folder:
        return 0 if print_result(soak(options.minutes, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
