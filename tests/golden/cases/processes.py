"""Several processes and interruptions: the results of ranks.py, which runs once in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.results import Result

ROOT = Path(__file__).parents[3]
NAMES = (
    *("serial", "two-ranks", "four-ranks", "killed-and-resumed", "stopped-and-resumed"),
    *("evaluation/serial", "evaluation/two-ranks"),
)
EQUAL = (
    ("processes/serial", "processes/two-ranks"),
    ("processes/serial", "processes/killed-and-resumed"),
    ("processes/serial", "processes/stopped-and-resumed"),
    ("processes/evaluation/serial", "processes/evaluation/two-ranks"),
)
"""Cases whose results are equal bit for bit."""


@cache
def run_everything() -> dict[str, Result]:
    """Run all cases in a process of their own: ranks are forked, which a process with threads should not."""
    with TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tests.golden.cases.ranks", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads((Path(folder) / "results.json").read_text())


def find_result(name: str) -> Result:
    """Return the result of one case."""
    return run_everything()[name]


CASES: dict[str, Callable[[], Result]] = {f"processes/{name}": partial(find_result, name) for name in NAMES}
