"""The wheel and the source archive have the files that they need, and work without the repository."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.distributions import build, files_in_git, read_wheel, run, unpack

DATA = [
    "allrounder/py.typed",
    "allrounder/cli/index.json",
    "allrounder/cli/schema.json",
    "allrounder/cli/watch_page/index.html",
    "allrounder/data/datasets/embedded.npz",
    "allrounder/experiments/studies/embedded/demo.toml",
    "allrounder/recipe/recipes/embedded/_base.toml",
    "allrounder/report/page/page.html.j2",
]
"""One file of every kind that is not Python."""
PROGRAM = """
import sys
from pathlib import Path
import allrounder as ar

assert Path(ar.__file__).is_relative_to(sys.argv[1]), ar.__file__
data = ar.Embedded().load()
settings = ["epochs=1", "train_images=64", "batch_size=32", "validation.images=10", "validation.every=1"]
run = ar.train("embedded/nt", "run", overrides=settings, progress=False)
outcome = ar.evaluate(ar.load("run", "last"), data, threats=["Linf:0.1"], attacks=["pgd-1"], n=8)
print(len(data.test), outcome.accuracy())
"""
"""Loads the embedded data, trains for a step and evaluates."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked source archive."""
    archive = build("sdist", tmp_path_factory.mktemp("archive"))
    return unpack(archive, tmp_path_factory.mktemp("source"))


def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel: Path):
    known = {name.removeprefix("src/") for name in files_in_git("src")}
    names = set(read_wheel(wheel))
    assert known - names == set(), "in git, but not in the wheel"
    assert names - known == set(), "in the wheel, but not in git: add these files to git, or delete them"
    assert names.issuperset(DATA)


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(wheel: Path, tmp_path: Path):
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run([*install, "--disable-pip-version-check", "--target", str(site), str(wheel)], here)
    script = str(site / "bin" / "allrounder")
    assert "embedded (" in run([script, "list"], here, site)
    assert 'kind = "natural"' in run([script, "show", "embedded/nt"], here, site)
    assert run([sys.executable, "-m", "allrounder", "--version"], here, site).startswith("allrounder ")
    run([sys.executable, "-W", "error", "-c", "import allrounder"], here, site)
    assert run([sys.executable, "-c", PROGRAM, str(site)], here, site).startswith("1000 ")
    run([script, "report", "run", "-o", "report.html"], here, site)
    assert (here / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(wheel: Path, source: Path, tmp_path: Path):
    assert read_wheel(build("wheel", tmp_path, source)) == read_wheel(wheel)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_the_source_archive_are_complete(source: Path):
    """They are collected, and those that read other files of the project pass."""
    pytest_of_archive = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    run([*pytest_of_archive, "--collect-only", "-m", ""], source, source / "src")
    readers = ["tests/architecture", "tests/packaging/test_versions.py"]
    readers += ["tests/unit/experiments/test_result_pages.py"]
    readers += ["tests/unit/test_documents.py", "tests/unit/test_examples.py"]
    run([*pytest_of_archive, *readers], source, source / "src")


@pytest.mark.slow
def test_the_source_archive_has_the_files_that_tests_read(source: Path):
    folders = ("benchmarks", "dev", "docs", "examples", "results", "scripts", "src", "tests")
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert files_in_git(*folders) - names == set()
    assert {name for name in names if name.startswith(tuple(f"{folder}/" for folder in folders))} <= (
        files_in_git(*folders)
    )
