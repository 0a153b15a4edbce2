"""Runs a command and measures the peak memory of its process and of all processes that it starts, together.

Memory is the proportional set size of Linux: a page that several processes share counts once. The peak of one
process alone, as the system reports it, would miss the others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

INTERVAL, READING_INTERVAL = 0.1, 1.0
"""Seconds between two looks at the process, and between two readings, which take some milliseconds each."""


def run_and_measure(command: Sequence[str]) -> tuple[str, float]:
    """Run a command; return what it prints and its peak memory in MB. Exits if the command fails."""
    peak = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=output, stderr=errors, text=True) as process:
            read_at = 0.0
            while process.poll() is None:
                if time.monotonic() - read_at > READING_INTERVAL:
                    peak = max(peak, tree_kilobytes(process.pid))
                    read_at = time.monotonic()
                time.sleep(INTERVAL)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{errors.read()}")
        return output.read(), peak / 1024


def tree_kilobytes(pid: int) -> int:
    """The memory of a process and its descendants; 0 for one that has just ended."""
    folder = Path("/proc") / str(pid)
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        children = (folder / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return own + sum(tree_kilobytes(int(child)) for child in children)
