"""A finished study that can be published, and what its published folder shows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allrounder.experiments.manifest import Manifest, collect_results
from allrounder.experiments.study import Study
from allrounder.report.outcome import Outcome
from allrounder.report.study import render_study
from tests.support.studies import run_here, tiny_study

IMAGES = 9


def run_publishable_study(folder: Path) -> tuple[Study, Path]:
    """Run a study of two rows and two seeds with relative paths; return it and its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = replace(tiny_study(Path()), images=IMAGES)
        run_here(study, Path("out"))
    for number, file in enumerate(sorted((folder / "out").glob("*/seed-*/eval/best/outcome.safetensors"))):
        change_outcome(file, 2 * number + 1)
    return study, folder / "out"


def change_outcome(file: Path, count: int) -> None:
    """Let the first `count` images of an outcome be right, so that outcomes differ between rows and seeds."""
    outcome = Outcome.load(file)
    is_right = np.arange(len(outcome)) < count
    predicted = np.where(is_right, outcome.label, (outcome.label + 1) % 3)
    replace(outcome, predicted=dict.fromkeys(outcome.predicted, predicted)).save(file)


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def render(folder: Path, style: str = "markdown") -> str:
    return render_study(collect_results(Manifest.load(folder), folder), style)


def remove_seed(folder: Path, seed: int) -> None:
    for row in ("slow", "fast"):
        shutil.rmtree(folder / row / f"seed-{seed}")
