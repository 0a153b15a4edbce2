"""The start of a run: from `allrounder train` to the first step, relative to the bare imports and the data.

    python benchmarks/first_step.py
    python benchmarks/first_step.py --recipe small/cifar10-nt --rounds 3

The bare program imports the libraries that a training needs and reads the data file of the embedded recipes.
Every program runs in its own process, in turns, with one thread. Seconds are CPU seconds, and the minimum of
all rounds counts, because other programs only add to it. The first step includes tracing and folding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

from startup import environment

RECIPE = "embedded/generalist-d-nt-linf"
MAX_AIM = 1.5
BARE = """
import json, time
import jaxtyping, numpy, pydantic, rich.progress, safetensors.numpy, torch, typer
from importlib.util import find_spec
from pathlib import Path
package = Path(find_spec("allrounder").submodule_search_locations[0])
with numpy.load(package / "data" / "datasets" / "embedded.npz") as file:
    arrays = [torch.from_numpy(file[name]) for name in file.files if file[name].dtype.kind in "iu"]
print(json.dumps({"bare": time.process_time()}))
"""
TRAIN = """
import json, os, sys, time
from allrounder.cli.main import main

def stop_after_first_step():
    from allrounder.training import learner
    step = learner.Learner.step
    def timed(self, *arguments, **keywords):
        begin = time.process_time()
        step(self, *arguments, **keywords)
        print(json.dumps({"begin": begin, "end": time.process_time()}), flush=True)
        os._exit(0)
    learner.Learner.step = timed

class Finder:
    # Called for every import: the trainer is the first module that needs the patched class.
    def find_spec(self, name, path=None, target=None):
        if name == "allrounder.training.trainer":
            sys.meta_path.remove(self)
            stop_after_first_step()

sys.meta_path.insert(0, Finder())
sys.argv = ["allrounder", "train", RECIPE, "--threads", "1", "--out", "run"]
main()
"""


def run_program(program: str) -> dict[str, float]:
    """Run a program in an empty folder, and return the CPU seconds that it prints in its last line."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, env=environment(), capture_output=True, text=True
        )
    if process.returncode:
        sys.exit(f"the start of a run ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def measure(recipe: str, rounds: int) -> dict[str, Any]:
    """The CPU seconds of the bare program and of the start of a run, and their ratios."""
    programs = (BARE, TRAIN.replace("RECIPE", repr(recipe)))
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for program in programs:
            for name, value in run_program(program).items():
                if number:  # the first round writes the bytecode and fills the file caches
                    seconds.setdefault(name, []).append(value)
    best = {name: min(values) for name, values in seconds.items()}
    ratios = {"begin / bare": best["begin"] / best["bare"], "end / bare": best["end"] / best["bare"]}
    return {"recipe": recipe, "rounds": rounds, **best, **ratios}


def main() -> None:
    """Print the seconds and the ratios; an exclamation mark is a missed aim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    row = measure(options.recipe, options.rounds)
    if options.json:
        print(json.dumps(row))
        return
    print(f"{row['recipe']}, best of {row['rounds']}, CPU seconds: bare imports and data {row['bare']:.2f}")
    for name, text in (("begin", "until the first step begins"), ("end", "until it ends")):
        ratio = row[f"{name} / bare"]
        print(f"{text:28} {row[name]:6.2f} s {ratio:6.2f} x{'!' * (ratio > MAX_AIM)}")


if __name__ == "__main__":
    main()
