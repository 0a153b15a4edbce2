"""The start-up time of the command line and of `import allrounder`, relative to an empty Python program.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 1 --case import --case help

Every command runs in its own process; the commands take turns, and the minimum of all rounds is reported,
because other programs only add to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BASELINE = "python -c pass"
STUDY = "embedded/methods"
CASES: dict[str, tuple[str, ...]] = {
    "import": ("-c", "import allrounder"),
    "help": ("-m", "allrounder", "--help"),
    "version": ("-m", "allrounder", "--version"),
    "table": ("-m", "allrounder", "table", STUDY),
    "list": ("-m", "allrounder", "list"),
    "schema": ("-m", "allrounder", "schema"),
    "show": ("-m", "allrounder", "show", "embedded/nt"),
}
"""The arguments of Python by case."""
EXIT_CODES = {"table": (0, 1)}
"""Accepted exit codes; `table` fails without a finished study, which it reports after all imports."""


def time_python(name: str, arguments: tuple[str, ...], folder: Path) -> float:
    """The seconds of a Python process with these arguments, run in an empty folder."""
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(), capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    if process.returncode not in EXIT_CODES.get(name, (0,)):
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    return seconds


def environment() -> dict[str, str]:
    """The environment, with the package's source on the path of Python, and with bytecode files, which an
    installed package has."""
    source = Path(__file__).parents[1] / "src"
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    python = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **python, "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Print the minimum seconds of every case and its ratio to the baseline."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=CASES, action="append", help="all by default")
    options = parser.parse_args()
    cases = {BASELINE: ("-c", "pass"), **{name: CASES[name] for name in options.case or CASES}}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in cases.items():  # fills the file caches
            time_python(name, arguments, Path(folder))
        for _ in range(options.rounds):
            for name, arguments in cases.items():
                seconds[name].append(time_python(name, arguments, Path(folder)))
    baseline = min(seconds[BASELINE])
    print(f"Python {sys.version.split()[0]}, best of {options.rounds}; seconds, and ratio to {BASELINE}")
    for name, times in seconds.items():
        print(f"{name:15} {min(times):6.3f} s {min(times) / baseline:7.1f} x")


if __name__ == "__main__":
    main()
