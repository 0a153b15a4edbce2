"""Ranks as real processes that talk through gloo, forked from one process that has everything imported."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch

from allrounder.errors import Interrupted

FAILED, SAVED, CRASHED = 1, 75, 99
Ended: TypeAlias = tuple[list[int], list[str]]
"""The code of every rank, and what it said."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ranks(size: int, body: Callable[[int], object], said: Path) -> Ended:
    """Run a body in every rank of a world; how each ended, and what it said on its way out."""
    return started(size, body, said)()


def started(
    size: int, body: Callable[[int], object], said: Path, during: Callable[[list[int]], None] | None = None
) -> Callable[[], Ended]:
    """The same, to be waited for later; `during` gets the process numbers before."""
    port, children = str(free_port()), list[int]()
    said.mkdir(parents=True, exist_ok=True)
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            os._exit(_ended(body, rank, said / f"{rank}.txt"))
        children.append(child)

    def ended() -> Ended:
        if during is not None:
            during(children)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return codes, [_read(said / f"{rank}.txt") for rank in range(size)]

    return ended


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _ended(body: Callable[[int], object], rank: int, file: Path) -> int:
    torch.set_num_threads(1)
    try:
        body(rank)
        return 0
    except Interrupted as stop:
        file.write_text(str(stop))
        return SAVED
    except RuntimeError as error:
        file.write_text(f"{type(error).__name__}: {error}")
        return FAILED
    except BaseException:
        file.write_text(traceback.format_exc())
        return CRASHED
    finally:
        sys.stdout.flush()


def wait_for(path: Path, seconds: float = 20) -> None:
    """Until a file is there."""
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)
