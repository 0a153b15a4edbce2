"""Disks that are full or read-only, and folders that cannot exist: one sentence, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allrounder.errors import StorageError
from allrounder.training import disk_space
from allrounder.training import train as train_module
from tests.support.damage import flip, small_disk
from tests.support.interruptions import SMALL, command
from tests.support.trainings import remains

EVALUATION = ("--attack", "pgd-2", "--threat", "Linf:0.1", "--n", "20", "--quiet")


def train(folder: Path, *words: str) -> int:
    return command(*SMALL, "--out", str(folder), *words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which no test may change."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(folder) == 0
    return folder


@pytest.fixture
def error(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Returns the last line on standard error, after a check that there is no traceback."""

    def last_line() -> str:
        text = capfd.readouterr().err
        assert "Traceback" not in text, text
        return text.strip().splitlines()[-1]

    return last_line


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KB; a finished run takes about 170."""
    with small_disk(tmp_path / "disk", 600) as folder:
        yield folder


def fill(disk: Path, free: int) -> Path:
    """Fill a disk except for some bytes; return the file to delete."""
    ballast = disk / "ballast"
    ballast.write_bytes(b"0" * (shutil.disk_usage(disk).free - free))
    return ballast


@pytest.mark.parametrize("free", [0, 8 << 10, 100 << 10, 170 << 10])
def test_a_training_continues_after_a_full_disk(
    free: int, disk: Path, whole: Path, error: Callable[[], str], monkeypatch: pytest.MonkeyPatch
):
    ballast = fill(disk, free)
    monkeypatch.setattr(disk_space, "read_free_bytes", lambda folder: 10**9)  # it fills up during the run
    assert train(disk / "run") == 75
    message = r": cannot be written, the disk is full; free some space and call again"
    assert message in error()
    ballast.unlink()
    assert train(disk / "run", "--resume") == 0
    assert remains(disk / "run") == remains(whole)


def test_a_training_that_does_not_fit_on_the_disk_says_so_before_it_starts(
    tmp_path: Path, error: Callable[[], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk_space, "read_free_bytes", lambda folder: 20_000)
    assert train(tmp_path / "run") == 75
    message = error()
    assert "its checkpoints and weights will take 0." in message and "the disk has 0.0 MB" in message
    assert "free some space and call again, or choose a folder on another disk" in message
    assert (
        not (tmp_path / "run" / "checkpoints").exists() and not (tmp_path / "run" / "metrics.jsonl").exists()
    )
    monkeypatch.undo()
    assert train(tmp_path / "run") == 0


def test_the_space_that_is_needed_is_no_more_than_what_is_written(whole: Path, tmp_path: Path):
    files = [file for name in ("checkpoints", "weights") for file in (whole / name).rglob("*.safetensors")]
    written = sum(file.stat().st_size for file in files)
    needed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "check_disk_space", lambda folder, count: needed.append(count))
        assert train(tmp_path / "run") == 0
    assert written / 3 < needed[0] < 1.5 * written


def test_files_of_earlier_sessions_count_as_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "a").write_bytes(bytes(60))
    monkeypatch.setattr(disk_space, "read_free_bytes", lambda folder: 40)
    disk_space.check_disk_space(tmp_path, 100)
    with pytest.raises(StorageError, match="will take"):
        disk_space.check_disk_space(tmp_path, 101)


def test_an_evaluation_continues_after_a_full_disk(disk: Path, whole: Path, error: Callable[[], str]):
    words = ("eval", str(whole), *EVALUATION, "--out")
    ballast = fill(disk, 12 << 10)
    assert command(*words, str(disk / "eval")) == 75
    assert "the disk is full" in error()
    ballast.unlink()
    assert command(*words, str(disk / "eval")) == 0
    assert command(*words, str(disk / "again")) == 0
    results = [(disk / name / "outcome.safetensors").read_bytes() for name in ("eval", "again")]
    assert results[0] == results[1]


@pytest.mark.slow
def test_a_study_continues_after_a_full_disk(disk: Path, error: Callable[[], str]):
    words = ("compare", "embedded/nt", *SMALL[2:], "--out", str(disk / "study"), "--workers", "1")
    ballast = fill(disk, 100 << 10)
    assert command(*words) == 75
    message = error()
    assert "the disk is full" in message or "its checkpoints and weights will take" in message
    ballast.unlink()
    assert command(*words) == 0


def test_a_read_only_disk_is_explained(disk: Path, whole: Path, error: Callable[[], str]):
    shutil.copytree(whole, disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert train(disk / "new") == 1
    assert "new: cannot be written (Read-only file system); make this place writable" in error()
    assert command("eval", str(disk / "run"), *EVALUATION) == 1
    assert "Read-only file system" in error()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_explained(tmp_path: Path, error: Callable[[], str]):
    tmp_path.chmod(0o500)
    assert train(tmp_path / "run") == 1
    assert "run: cannot be written (Permission denied)" in error()


PLACES = {
    "below a file": ("file/run", "Not a directory"),
    "too long": ("x" * 300, "File name too long"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("verb", ["train", "eval", "compare", "resume"])
def test_a_place_without_a_folder_is_explained(
    place: str, verb: str, tmp_path: Path, whole: Path, error: Callable[[], str]
):
    name, reason = PLACES[place]
    (tmp_path / "file").write_text("kept")
    words = {
        "train": SMALL,
        "resume": (*SMALL, "--resume"),
        "eval": ("eval", str(whole), *EVALUATION),
        "compare": ("compare", "embedded/nt", *SMALL[2:]),
    }
    assert command(*words[verb], "--out", str(tmp_path / name)) == 1
    assert f"cannot be written ({reason})" in error()
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("verb", ["train", "eval", "compare"])
def test_a_folder_name_that_is_not_utf8_is_explained(
    verb: str, tmp_path: Path, whole: Path, error: Callable[[], str]
):
    folder = tmp_path / os.fsdecode(b"run\xff")
    words = {
        "train": SMALL,
        "eval": ("eval", str(whole), *EVALUATION),
        "compare": ("compare", "embedded/nt", *SMALL[2:]),
    }
    assert command(*words[verb], "--out", str(folder)) == 1
    assert "run\\udcff' is not UTF-8; rename that file or folder" in error()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["recipe.toml", "format.json", "env.json", "metrics.jsonl", "manifest.json"])
def test_a_damaged_file_is_named(name: str, whole: Path, tmp_path: Path, error: Callable[[], str]):
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(next((folder / "weights").glob("last-*")))  # so that it can be resumed
    flip(next(folder.rglob(name)))
    assert train(folder, "--resume") == 1
    assert f"{name}: cannot be read (" in (message := error())
    assert "; restore it from a copy, or " in message
