"""Two hosts and a cable, as network namespaces of this machine: the cable is cut and restored."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from allrounder.training.run import Run
from tests.distributed.ranks import free_port
from tests.distributed.test_training import trained
from tests.support.paths import PROJECT

ROOT = PROJECT
ADDRESSES = ("10.213.77.1", "10.213.77.2")
SMALL = tuple(word for text in (
    "epochs=4", "batch_size=790", "model.width=4", "validation.images=50", "validation.train_images=0",
    "validation.every=1", "validation.threats=[]",
) for word in ("--set", text))  # fmt: skip
"""Five steps an epoch, twenty in all, with a checkpoint after every epoch."""
TIMEOUT = 30


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Generator[tuple[str, str]]:
    """Two namespaces that can reach each other by one cable."""
    names = (f"one{os.getpid()}", f"two{os.getpid()}")
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "cable0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    yield names
    for name in names:
        ip("netns", "del", name)


def command(out: Path) -> list[str]:
    return ["allrounder", "train", "embedded/generalist-t", *SMALL, "--out", str(out), "--threads", "1"]


def started(hosts: tuple[str, str], out: Path, logs: Path, *more: str) -> list[subprocess.Popen[bytes]]:
    """torchrun on both hosts, one with two ranks."""
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    logs.mkdir()
    running: list[subprocess.Popen[bytes]] = []
    for host, address, count in zip(hosts, ADDRESSES, (1, 2), strict=True):
        command_line = [
            "ip",
            "netns",
            "exec",
            host,
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
        ]
        command_line += [f"--nproc-per-node={count}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
        command_line += [
            f"--rdzv-conf=is_host={int(host == hosts[0])}",
            "--rdzv-id=cable",
            "--max-restarts=0",
        ]
        command_line += [f"--local-addr={address}", "-m", *command(out), *more]
        env = {"GLOO_SOCKET_IFNAME": "cable0", "ALLROUNDER_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1"}
        with (logs / f"{host[:3]}.txt").open("wb") as log:
            running.append(
                subprocess.Popen(command_line, cwd=ROOT, env={**os.environ, **env}, stdout=log, stderr=log)
            )
    return running


def end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher; one that waits for the other host by the cut cable hears no signal."""
    process.terminate()
    try:
        process.wait(timeout=45)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(what: Callable[[], Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(what())


def read_logs(logs: Path) -> dict[str, str]:
    return {log.stem: log.read_text() for log in logs.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_lost_connection_is_reported_and_resume_gives_identical_weights(
    hosts: tuple[str, str], tmp_path: Path
):
    serial, out = tmp_path / "serial", tmp_path / "run"
    command_line = [sys.executable, "-m", *command(serial)]
    subprocess.run(command_line, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    running = started(hosts, out, tmp_path / "cut")
    assert until(lambda: [*out.glob("checkpoints/step-*")], 300), read_logs(tmp_path / "cut")
    ip("-n", hosts[0], "link", "set", "cable0", "down")
    try:
        reports = ("took no step", "got no answer", "does not answer", "lost the connection")
        for host in hosts:  # each side reports it within a bounded time
            log = tmp_path / "cut" / f"{host[:3]}.txt"
            assert until(lambda log=log: any(text in log.read_text() for text in reports), 200), (
                log.read_text()
            )
        assert not Run(out).finished
    finally:
        for process in running:
            end(process)
        ip("-n", hosts[0], "link", "set", "cable0", "up")
    again = started(hosts, out, tmp_path / "resumed", "--resume")
    assert [process.wait(timeout=400) for process in again] == [0, 0], read_logs(tmp_path / "resumed")
    assert trained(out) == trained(serial)
