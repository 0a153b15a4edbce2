"""What torchrun and --workers start: real processes with all that they import, so these tests are slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from allrounder.distributed import default_threads, launch_processes
from allrounder.errors import WorldError
from allrounder.training.run import Run
from tests.distributed.test_training import ROOT, trained
from tests.distributed.test_two_hosts import command
from tests.distributed.training_scenarios import TRIO
from tests.support.trainings import go

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_threads_set_by_torchrun_are_ignored(monkeypatch: pytest.MonkeyPatch):
    environments: list[dict[str, str]] = []

    def answer(command_line: list[str], env: dict[str, str], **_: Any) -> Any:
        environments.append(env)
        return SimpleNamespace(stdout="7\n")

    monkeypatch.setattr(subprocess, "run", answer)
    assert default_threads() == torch.get_num_threads() and not environments, "nobody launched this process"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("allrounder.distributed.launch._user_set_threads", lambda: False)
    assert default_threads() == 7 and "OMP_NUM_THREADS" not in environments[0]
    monkeypatch.setattr("allrounder.distributed.launch._user_set_threads", lambda: True)
    assert default_threads() == torch.get_num_threads(), "what the user set counts"


def test_workers_inside_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WorldError, match="--workers cannot be combined with torchrun"):
        launch_processes(["train"], 2)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 75])
def test_end_of_the_first_failed_rank_is_reported(code: int, monkeypatch: pytest.MonkeyPatch):
    failure = ChildFailedError("allrounder", {1: ProcessFailure(1, 4321, code, "")})

    def launch(*arguments: str) -> None:
        raise failure

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda config, program: launch)
    if code == 75:
        assert launch_processes(["train"], 2) == 75, "it printed its error itself"
        return
    with pytest.raises(WorldError, match=r"^rank 1: SIGKILL ended its process; .* continue with --resume"):
        launch_processes(["train"], 2)


@pytest.mark.slow
def test_restarted_rank_gives_identical_weights(tmp_path: Path):
    command_line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command_line += ["--max-restarts=1", "-m", "tests.distributed.restart_scenario", str(tmp_path / "run")]
    process = subprocess.run(command_line, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert trained(tmp_path / "run") == trained(go(TRIO, tmp_path / "serial").folder)


@pytest.mark.slow
def test_signal_stops_workers_and_one_process_continues(tmp_path: Path):
    serial, out = tmp_path / "serial", tmp_path / "run"
    subprocess.run([sys.executable, "-m", *command(serial)], cwd=ROOT, env=ENV, check=True)
    first = subprocess.Popen(
        [sys.executable, "-m", *command(out), "--workers", "2"], cwd=ROOT, env=ENV, stderr=subprocess.PIPE
    )
    while not [*out.glob("checkpoints/step-*")]:
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    _, output = first.communicate(timeout=200)
    assert first.returncode == 75
    assert output.decode().count("2 processes of 1 threads") == 1, "rank 0 alone speaks"
    assert not Run(out).finished
    subprocess.run([sys.executable, "-m", *command(out), "--resume"], cwd=ROOT, env=ENV, check=True)
    assert trained(out) == trained(serial)
