"""How much memory something takes that frees it again before anybody can look."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

STATM = Path("/proc/self/statm")
PAUSE = 0.002
"""Seconds between two looks."""


@contextmanager
def growth(device: torch.device) -> Generator[list[int]]:
    """By how many bytes memory grew at most meanwhile, known at the end: of a CUDA device, or the process.

    Without Linux's account of itself, only what goes beyond every earlier peak is seen.
    """
    found = [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        found[0] = torch.cuda.max_memory_allocated(device) - before
        return
    before, done = _now(), threading.Event()

    def look() -> None:
        while not done.wait(PAUSE):
            found[0] = max(found[0], _now() - before)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found[0] = max(found[0], _now() - before)


def _now() -> int:
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
