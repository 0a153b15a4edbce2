"""Stored files with flipped bits or without their end, and stored files that are changed on purpose."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allrounder.system.checked_files import write_json


def flip(file: Path, position: int | None = None, bit: int = 0) -> None:
    """Flip one bit of a file, by default in its middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1 << bit
    file.write_bytes(data)


def cut(file: Path) -> None:
    """Remove the last byte of a file."""
    file.write_bytes(file.read_bytes()[:-1])


def damages(content: bytes, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Name and return `count` versions of a file with a flipped bit, and a quarter as many that are cut."""
    rng = np.random.default_rng(seed)
    for position in sorted(rng.choice(len(content), min(count, len(content)), replace=False).tolist()):
        bit = int(rng.integers(8))
        data = bytearray(content)
        data[position] ^= 1 << bit
        yield f"bit {bit} of byte {position} flipped", bytes(data)
    for size in {0, len(content) - 1, *rng.integers(len(content), size=count // 4).tolist()}:
        yield f"cut to {size} bytes", content[:size]


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Generator[Path]:
    """Mount a disk of this size at a new folder within the context; skip the test where that is forbidden."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of a JSON file, and write it with the right digest."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    del fields["digest"]
    change(fields)
    write_json(file, fields)
