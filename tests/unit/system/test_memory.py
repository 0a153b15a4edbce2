from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref

import pytest

from allrounder.system.memory import keep_freed_memory

FREE_MEMORY = """
import os, torch
from allrounder.system.memory import STATM, release_freed_memory
resident = lambda: int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
blocks = [torch.ones(16384) for _ in range(2048)]  # of 64 kB, which glibc does not give back one by one
last = blocks[-1]  # it keeps glibc from giving back the top of the heap by itself
del blocks
before = resident()
release_freed_memory()
assert float(last.sum()) == len(last)
print(before - resident())
"""


KEEP_MEMORY = """
import resource, torch
from allrounder.system.memory import STATM, keep_freed_memory

def count_faults():
    def allocate():
        for mb in (100, 20):  # larger and smaller than the largest block that glibc keeps by itself
            blocks = [torch.ones(2**18 * mb) for _ in range(4)]
            del blocks
    for _ in range(5):  # until free blocks of all sizes exist
        allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    allocate()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults = [count_faults()]
with keep_freed_memory():
    faults.append(count_faults())
    with keep_freed_memory():
        pass
    faults.append(count_faults())
faults.append(count_faults())
resident = int(STATM.read_text().split()[1])
print(*faults, resident)
"""
FINALISER = """
import threading
from allrounder.system.memory import keep_freed_memory

def use_block():
    with keep_freed_memory():
        pass

class Last:
    def __init__(self):
        self.same = self

    def __del__(self):
        use_block()
        other = threading.Thread(target=use_block)
        other.start()
        other.join()
        print(1)

with keep_freed_memory():
    Last()
"""
glibc_only = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)


def run_alone(program: str, **environment: str) -> list[int]:
    """The numbers that a program prints in a process of its own, whose heap holds nothing else."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=own | environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@glibc_only
def test_freed_memory_is_given_back():
    (freed,) = run_alone(FREE_MEMORY)
    assert freed > 2**26, "expected more than half of 128 MB"


class Loop:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.same = self


def test_garbage_in_cycles_is_collected_at_the_end_of_a_block():
    loop = Loop()
    reference = weakref.ref(loop)
    gc.disable()
    try:
        del loop
        assert reference() is not None
        with keep_freed_memory():
            pass
        assert reference() is None
    finally:
        gc.enable()


@glibc_only
def test_freed_memory_is_kept_in_a_block():
    """A page that the system gives to the process again is a fault; 480 MB have at least 240 of them."""
    before, inside, nested, after, resident_pages = run_alone(KEEP_MEMORY)
    assert inside < 20 and nested < 20
    assert before > 200 and after > 200
    assert resident_pages * os.sysconf("SC_PAGE_SIZE") < 2**29, (
        "expected the peak of the block to be released"
    )


def test_a_finaliser_may_use_a_block():
    """The end of the last block collects garbage, which runs finalisers."""
    assert run_alone(FINALISER) == [1]


@glibc_only
def test_settings_of_the_environment_stay():
    before, inside, nested, after, _ = run_alone(KEEP_MEMORY, MALLOC_MMAP_THRESHOLD_="131072")
    assert min(before, inside, nested, after) > 200
