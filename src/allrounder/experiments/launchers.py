"""Where the trainings of a study run: here, as an array of Slurm, or on a cluster of Ray."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from allrounder.errors import RunError, WorldError
from allrounder.system.processes import Job, Note, Send

Launcher: TypeAlias = Literal["local", "slurm", "ray"]
SCRIPT = "slurm.sh"


def slurm_script(folder: Path, count: int) -> str:
    """A script for sbatch: one task for every training, each of one core; it may be submitted again."""
    place = folder.absolute()
    command = [sys.executable, "-m", "allrounder", "sweep", str(place / "study.toml"), "--out", str(place)]
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name=allrounder-{place.name}",
        f"#SBATCH --array=0-{count - 1}",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:TERM@60",
        f"#SBATCH --output={place / 'slurm-%a.log'}",
        "export OMP_NUM_THREADS=1",
        f'exec {shlex.join(command)} --only "$SLURM_ARRAY_TASK_ID"',
    ]
    return "\n".join(lines) + "\n"


def submit(script: Path) -> str:
    """Hand a script to Slurm; what it answers."""
    try:
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise WorldError(
            f"sbatch: no such command here; on a machine of the cluster, call: sbatch {script}"
        ) from None
    if done.returncode:
        raise WorldError(f"sbatch {script}: {done.stderr.strip()}")
    return done.stdout.strip()


def run_on_ray(jobs: Mapping[str, Job], show: Send, address: str | None = None) -> None:
    """Run all jobs as tasks of one core on a Ray cluster that shares this folder; every job is tried."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise WorldError(
            f'ray is needed for this ({error}); install it with: pip install "allrounder[ray]"'
        ) from None
    library: Any = ray
    library.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        task = library.remote(num_cpus=1, max_retries=2)(_carried_out)
        waiting = {task.remote(job, name): name for name, job in jobs.items()}
        failed: dict[str, str] = {}
        while waiting:
            (done,), _ = library.wait(list(waiting))
            name = waiting.pop(done)
            try:
                reason = library.get(done)
            except Exception as error:  # Whatever Ray says of a task whose process died.
                reason = str(error)
            if reason:
                failed[name] = reason
            show(Note(name, 1, 1, "failed" if reason else "done"))
    finally:
        library.shutdown()
    if failed:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, the others are done:\n{reasons}")


def _carried_out(job: Job, name: str) -> str:
    """Why a job failed; nothing if it did not."""
    import torch

    torch.set_num_threads(1)
    try:
        job(name, lambda note: None)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        return str(error)
    return ""
