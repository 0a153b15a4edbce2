"""The script for Slurm, as a shell and a stand-in of sbatch read it."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import WorldError
from allrounder.experiments.launchers import SLURM_SCRIPT, slurm_script, submit_to_slurm
from allrounder.experiments.runner import open_study
from allrounder.report.outcome import OUTCOME_FILE
from tests.support.studies import tiny_study

SBATCH = """#!/bin/bash
set -eu
bash -n "$1"
range=$(sed -n 's/^#SBATCH --array=//p' "$1")
eval "log=$(sed -n 's/^#SBATCH --output=//p' "$1")"
for task in $(seq "${range%-*}" "${range#*-}"); do
    SLURM_ARRAY_TASK_ID=$task sh "$1" > "${log/\\%a/$task}" 2>&1
done
echo Submitted batch job 7
"""
"""What sbatch does with an array job, one task after the other."""


def write_sbatch(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "sbatch").write_text(text, encoding="utf-8")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize("name", ["out", "two words", "it's $HOME; `here`"])
def test_the_script_for_slurm_is_valid_for_a_shell(name: str, tmp_path: Path):
    folder = tmp_path / name
    folder.mkdir()
    text = slurm_script(folder, 4)
    (folder / SLURM_SCRIPT).write_text(text, encoding="utf-8")
    for shell in ("bash", "sh"):
        checked = subprocess.run([shell, "-n", str(folder / SLURM_SCRIPT)], capture_output=True, text=True)
        assert checked.returncode == 0 and checked.stderr == ""
    # The command that a task runs, with its arguments one per line.
    command = text.splitlines()[-1].removeprefix("exec ")
    script = f"SLURM_ARRAY_TASK_ID=3; printf '%s\\n' {command}"
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert words.splitlines()[-4:] == ["--out", str(folder), "--only", "3"]
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    (output,) = [line.removeprefix("#SBATCH ") for line in directives if "--output" in line]
    assert shlex.split(output) == [f"--output={folder / 'slurm-%a.log'}"]
    (job,) = [line for line in directives if "--job-name" in line]
    assert re.fullmatch(r"#SBATCH --job-name=allrounder-[A-Za-z0-9._-]+", job)
    assert len(directives) == 7 and text.splitlines()[1:8] == directives, "sbatch reads only the first lines"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sbatch_runs_every_training_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sbatch(tmp_path / "bin", SBATCH, monkeypatch)
    study, folder = replace(tiny_study(tmp_path), seeds=(0,)), tmp_path / "two words"
    count = len(open_study(study, folder).trials())
    script = folder / SLURM_SCRIPT
    script.write_text(slurm_script(folder, count), encoding="utf-8")
    assert submit_to_slurm(script) == "Submitted batch job 7"
    assert len(list(folder.glob(f"*/*/eval/best/{OUTCOME_FILE}"))) == count == 2
    assert len(list(folder.glob("slurm-*.log"))) == count


def test_the_reason_of_sbatch_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sbatch(tmp_path / "bin", "#!/bin/sh\necho Invalid partition >&2\nexit 1\n", monkeypatch)
    with pytest.raises(WorldError, match=r"sbatch .*slurm.sh: Invalid partition"):
        submit_to_slurm(tmp_path / SLURM_SCRIPT)
