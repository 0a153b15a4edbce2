"""Ranks as real processes that communicate with gloo, forked from one process with all imports done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from allrounder.errors import Interrupted
from allrounder.system.signals import EXIT_RESUMABLE
from tests.support.paths import PROJECT

FAILED = 1
SAVED = EXIT_RESUMABLE
CRASHED = 99
RankResults: TypeAlias = tuple[list[int], list[str]]
"""The exit code and the error of every rank."""


def run_scenarios(module: str, out: Path) -> Any:
    """Run a module of scenarios below a folder, and return what it writes to results.json."""
    command = [sys.executable, "-m", f"tests.distributed.{module}", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=PROJECT, env=env, stderr=subprocess.PIPE)
    assert process.returncode == 0, process.stderr.decode()
    return json.loads((out / "results.json").read_text())


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def run_ranks(size: int, body: Callable[[int], object], errors: Path) -> RankResults:
    """Run a function in every rank of a world and wait; errors are written to files in a folder."""
    return start_ranks(size, body, errors)()


def start_ranks(
    size: int, body: Callable[[int], object], errors: Path, during: Callable[[list[int]], None] | None = None
) -> Callable[[], RankResults]:
    """Start the ranks; returns a function that waits for them and calls `during` with their process ids
    before that."""
    port = str(free_port())
    children: list[int] = []
    errors.mkdir(parents=True, exist_ok=True)
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            os._exit(_run_rank(body, rank, errors / f"{rank}.txt"))
        children.append(child)

    def wait() -> RankResults:
        if during is not None:
            during(children)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return codes, [_read(errors / f"{rank}.txt") for rank in range(size)]

    return wait


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _run_rank(body: Callable[[int], object], rank: int, file: Path) -> int:
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
    """Wait until a file exists."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
