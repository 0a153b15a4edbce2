"""Builds the wheel and the source archive, and runs programs outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import PROJECT


def run(command: list[str], folder: Path, path: Path | None = None) -> str:
    """The output of a command that must succeed, run in a folder with only `path` on the path of Python."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["OMP_NUM_THREADS"] = "1"
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # the folder keeps the files of the archive, and no others
    if path is not None:
        env["PYTHONPATH"] = str(path)
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{' '.join(command)}\n{process.stdout}{process.stderr}"
    return process.stdout


def build(kind: str, into: Path, project: Path = PROJECT) -> Path:
    """Build the `wheel` or the `sdist` of a project, as `make dist` does."""
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)], project)
    (file,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


def read_wheel(file: Path) -> dict[str, bytes]:
    """The files of a wheel, without those that describe it."""
    with zipfile.ZipFile(file) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}


def unpack(file: Path, into: Path) -> Path:
    """Unpack a source archive; its folder."""
    with tarfile.open(file) as archive:
        archive.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def files_in_git(*folders: str) -> set[str]:
    """The files that git knows; skips the test in an unpacked source archive, which has no history."""
    if not (PROJECT / ".git").exists():
        pytest.skip("this folder is no git repository")
    names = run(["git", "ls-files", "-z", *folders], PROJECT).split("\0")
    return {name for name in names if name}
