"""Launchers for the trials of a study on a cluster: a Slurm array job, or tasks of Ray."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from allrounder.errors import RunError, WorldError
from allrounder.experiments.manifest import STUDY_FILE
from allrounder.system.processes import Job
from allrounder.system.progress import ProgressCallback, ProgressEvent

Launcher: TypeAlias = Literal["local", "slurm", "ray"]
SLURM_SCRIPT = "slurm.sh"


def slurm_script(folder: Path, count: int) -> str:
    """Return a script for sbatch with one single-core task per trial; submitting it again resumes them."""
    root = folder.absolute()
    command = [sys.executable, "-m", "allrounder", "sweep", str(root / STUDY_FILE), "--out", str(root)]
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name=allrounder-{re.sub(r'[^A-Za-z0-9._-]+', '-', root.name)}",
        f"#SBATCH --array=0-{count - 1}",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:TERM@60",
        f"#SBATCH --output={shlex.quote(str(root / 'slurm-%a.log'))}",
        "export OMP_NUM_THREADS=1",
        f'exec {shlex.join(command)} --only "$SLURM_ARRAY_TASK_ID"',
    ]
    return "\n".join(lines) + "\n"


def submit_to_slurm(script: Path) -> str:
    """Submit a script with sbatch; return its reply."""
    try:
        process = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        advice = f"run this on a machine of the cluster: sbatch {script}"
        raise WorldError(f"sbatch: no such command; {advice}") from None
    if process.returncode:
        raise WorldError(f"sbatch {script}: {process.stderr.strip()}")
    return process.stdout.strip()


def run_on_ray(jobs: Mapping[str, Job], on_progress: ProgressCallback, address: str | None = None) -> None:
    """Run jobs as single-core tasks on a Ray cluster with this file system; a failed one stops no other."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        advice = 'install it with: pip install "allrounder[ray]"'
        raise WorldError(f"the launcher ray needs Ray ({error}); {advice}") from None
    library: Any = ray
    library.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        task = library.remote(num_cpus=1, max_retries=2)(_run_job)
        waiting = {task.remote(job, name): name for name, job in jobs.items()}
        failed: dict[str, str] = {}
        while waiting:
            (done,), _ = library.wait(list(waiting))
            name = waiting.pop(done)
            try:
                reason = library.get(done)
            except Exception as error:  # Ray raises its own error if a task's process died
                reason = str(error)
            if reason:
                failed[name] = reason
            on_progress(ProgressEvent(name, 1, 1, "failed" if reason else "done"))
    finally:
        library.shutdown()
    if failed:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed, the others are done:\n{reasons}")


def _run_job(job: Job, name: str) -> str:
    """Run a job; return the reason if it failed, else an empty string."""
    import torch

    torch.set_num_threads(1)
    try:
        job(name, lambda event: None)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        return str(error) or type(error).__name__
    return ""
