"""Starting the processes of a run, and how many threads each has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch

from allrounder.errors import WorldError


def launch(words: Sequence[str], workers: int) -> int:
    """Run a command of this package in so many processes of this machine, as torchrun --standalone does.

    The code is that of the process that failed first; torchrun itself would make 1 of every code.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if "WORLD_SIZE" in os.environ:
        raise WorldError(
            "--workers: this process was started by torchrun, which says how many; give one of both"
        )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        log_line_prefix_template="",
    )
    try:
        elastic_launch(config, sys.executable)("-m", "allrounder", *words)
    except ChildFailedError as failed:
        return failed.get_first_failure()[1].exitcode
    except SignalException:
        return 75
    return 0


def default_threads() -> int:
    """The threads that this process would have if nobody had launched it.

    torchrun sets OMP_NUM_THREADS=1 where the user did not; then a launched run would have other bits than a
    serial one. What the user set counts.
    """
    launched = {"TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"} <= os.environ.keys()
    if not launched or _user_decided():
        return torch.get_num_threads()
    free = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    return int(subprocess.run(words, env=free, capture_output=True, text=True, check=True).stdout)


def _user_decided() -> bool:
    """Whether the launcher, this process's parent, was itself started with a number of threads."""
    try:
        return b"OMP_NUM_THREADS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return os.environ["OMP_NUM_THREADS"] != "1"
