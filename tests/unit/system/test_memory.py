from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_is_given_back():
    """In a process of its own, whose heap holds nothing else."""
    done = subprocess.run([sys.executable, "-c", FREE_MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2**26, "expected more than half of 128 MB"
