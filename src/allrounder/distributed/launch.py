"""Start the processes of a run on this machine, and choose the number of threads of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch

from allrounder.errors import RESUME_HINT, WorldError
from allrounder.system.signals import EXIT_RESUMABLE


def launch_processes(arguments: Sequence[str], workers: int) -> int:
    """Run an `allrounder` command in `workers` processes, like torchrun --standalone; returns the exit code
    of the process that failed first, where torchrun itself turns every failure into 1. Raises WorldError if a
    signal ended that process, because it could not print an error itself."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if "WORLD_SIZE" in os.environ:
        raise WorldError("--workers cannot be combined with torchrun; drop one of them")
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
        elastic_launch(config, sys.executable)("-m", "allrounder", *arguments)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            advice = f"what it saved before is intact; {RESUME_HINT}"
            raise WorldError(f"rank {rank}: {failure.signal_name()} ended its process; {advice}") from None
        return failure.exitcode
    except SignalException:
        return EXIT_RESUMABLE
    return 0


def default_threads() -> int:
    """The number of threads that this process would have without a launcher. torchrun sets OMP_NUM_THREADS=1
    unless the user set it, and a launched run would differ from a serial one in the last bits."""
    is_launched = {"TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"} <= os.environ.keys()
    if not is_launched or _user_set_threads():
        return torch.get_num_threads()
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def _user_set_threads() -> bool:
    """Whether the launcher, this process's parent, was itself started with OMP_NUM_THREADS."""
    try:
        return b"OMP_NUM_THREADS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return os.environ["OMP_NUM_THREADS"] != "1"
