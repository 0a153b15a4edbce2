from __future__ import annotations

import ctypes
import os

import pytest
import torch

from allrounder.system.memory import STATM, release_freed_memory

BLOCKS, FLOATS = 2048, 16384
"""Blocks of 64 kB, which glibc does not give back one by one."""


def resident_pages() -> int:
    return int(STATM.read_text().split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_is_given_back():
    blocks = [torch.ones(FLOATS) for _ in range(BLOCKS)]
    last = blocks[-1]  # it keeps glibc from giving back the top of the heap by itself
    del blocks
    before = resident_pages()
    release_freed_memory()
    given_back = before - resident_pages()
    assert given_back > BLOCKS * FLOATS * 4 / os.sysconf("SC_PAGE_SIZE") / 2
    assert float(last.sum()) == FLOATS
