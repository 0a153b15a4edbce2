"""A study that ran, its folder for one test, and its published form."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from allrounder.experiments.publish import publish_study
from allrounder.experiments.study import Study
from tests.support.publishing import run_publishable_study


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study and its folder, which no test may change."""
    return run_publishable_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def source(finished: tuple[Study, Path], tmp_path: Path) -> Path:
    """A copy of the folder, for one test."""
    return Path(shutil.copytree(finished[1], tmp_path / "out"))


@pytest.fixture
def published(finished: tuple[Study, Path], tmp_path: Path) -> Path:
    """The study, published for one test."""
    publish_study(finished[1], tmp_path / "results" / "tiny")
    return tmp_path / "results" / "tiny"
