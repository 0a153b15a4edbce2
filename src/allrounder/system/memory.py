"""The memory of the machine, and the peak memory of a block of code, including memory that it frees again."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

STATM = Path("/proc/self/statm")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The file with the bytes that a container may use, or the word max."""
POLL_SECONDS = 0.002


def total_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that the process runs in."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return min(physical, int(limit)) if limit.isdecimal() else physical


def release_freed_memory() -> None:
    """Give memory that this process has freed back to the system. glibc keeps it: some 200 MB after a
    preflight of ResNet-18. Does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def measure_peak_memory(device: torch.device) -> Generator[list[int]]:
    """Yields a list whose only entry becomes, at the end of the block, the largest growth in bytes: of the
    CUDA device's allocations, or of this process's resident memory (without /proc, beyond earlier peaks)."""
    peak = [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak[0] = torch.cuda.max_memory_allocated(device) - before
        return
    lowest = _resident_bytes()  # falls when the system takes back pages that the process does not use
    done = threading.Event()

    def measure() -> None:
        nonlocal lowest
        resident = _resident_bytes()
        lowest = min(lowest, resident)
        peak[0] = max(peak[0], resident - lowest)

    def poll() -> None:
        while not done.wait(POLL_SECONDS):
            measure()

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield peak
    finally:
        done.set()
        poller.join()
        measure()


def _resident_bytes() -> int:
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
