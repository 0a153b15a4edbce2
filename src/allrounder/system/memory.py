"""The memory of the machine, and the peak memory of a block of code, including memory that it frees again."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Parameters of glibc's `mallopt`."""
MAX_MAPPINGS = 65536
"""glibc's own limit for the number of blocks with a mapping of their own."""
KEPT_BLOCK = 2**30
"""Blocks of at least this many bytes always go back to the system."""
GLIBC_THRESHOLDS = 2**26, 2**25
"""The largest trim and mmap thresholds that glibc chooses by itself, on a machine of 64 bits."""
KEEP_LOCK = threading.RLock()
"""Held while a block begins or ends; reentrant, because a finaliser can run at any time and end a block."""
keep_depth = 0
"""How many blocks of `keep_freed_memory` are open in this process."""
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
    """Give memory that glibc keeps for later allocations back to the system: some 200 MB after a preflight of
    ResNet-18. Does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def keep_freed_memory() -> Generator[None]:
    """In this block, freed memory stays with the process for its next allocations.

    Passes allocate the same large tensors again and again. By default glibc gives each back to the system,
    which clears its pages every time: a tenth of the time of a pass of WRN-10-4, batch 64. Does nothing with
    other C libraries, or if the environment sets how malloc works.
    """
    _count_block(1)
    try:
        yield
    finally:
        _count_block(-1)


def _count_block(change: int) -> None:
    global keep_depth
    with KEEP_LOCK:
        was_open = keep_depth > 0
        keep_depth += change
        is_changed = (keep_depth > 0) != was_open and not _is_malloc_configured()
        if is_changed:
            _set_thresholds(*((-1, KEPT_BLOCK) if keep_depth else GLIBC_THRESHOLDS))
    if is_changed and change < 0:
        gc.collect()  # without the lock: this runs finalisers, which may wait for another thread
        release_freed_memory()


def _set_thresholds(trim: int, mmap: int) -> None:
    """Set from how many free bytes on the heap shrinks, -1 for never, and from which size on a block gets a
    mapping of its own, which ends with it. Versions of glibc that forbid so large a block get no mappings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, trim)
        mallopt(M_MMAP_MAX, MAX_MAPPINGS if mallopt(M_MMAP_THRESHOLD, mmap) else 0)


def _is_malloc_configured() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)


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
