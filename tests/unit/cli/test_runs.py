"""`allrounder ls` and `allrounder log`: the runs and studies on disk, and the curves of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from allrounder.recipe.recipe import Recipe
from allrounder.system.files import lock_folder
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.support.studies import run_here, tiny_study
from tests.support.trainings import PAIR, go, recipe
from tests.unit.cli.test_main import Command, allrounder, flat, overrides

__all__ = ["allrounder"]  # a fixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners."""
    return go(recipe(PAIR), tmp_path_factory.mktemp("runs") / "pair").folder


def copy(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder)
    return folder


def interrupt(run: Path) -> None:
    """Make a run look as after an interruption in its second epoch."""
    shutil.rmtree(run / "weights")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"epoch": 3' not in line))


def test_ls_prints_the_state_of_every_run(
    allrounder: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "400")
    copy(finished, tmp_path / "a" / "done")
    interrupt(copy(finished, tmp_path / "b-stopped"))
    interrupt(running := copy(finished, tmp_path / "c-running"))
    (copy(finished, tmp_path / "d-damaged") / "recipe.toml").write_text("epochs = [")
    (copy(finished, tmp_path / "e-other") / "format.json").write_text('{"format": 99}')
    Run.open_or_create(tmp_path / "f-new", recipe(PAIR), resume=False)
    (tmp_path / "other").mkdir()
    with lock_folder(running, "training"):
        answer = allrounder("ls", str(tmp_path))
    assert answer.code == 0, answer.err
    _, *rows = answer.out.splitlines()
    states = {row.split()[0].removeprefix(f"{tmp_path}/"): flat(row) for row in rows}
    assert list(states) == ["a/done", "b-stopped", "c-running", "d-damaged", "e-other", "f-new"]
    for name, state in (
        ("a/done", "finished"),
        ("b-stopped", "interrupted, epoch 2 of 3 done"),
        ("c-running", "running, epoch 2 of 3 done"),
        ("d-damaged", "damaged: recipe.toml: cannot be read (it was damaged"),
        ("e-other", "damaged: format.json: got format version 99"),
        ("f-new", "interrupted before the first epoch"),
    ):
        assert state in states[name], name
    assert "natural " in states["a/done"] and "%, Linf:" in states["a/done"]
    assert states["a/done"].endswith((" s", " ms"))


def test_ls_prints_studies(allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "300")
    study = tiny_study(tmp_path)
    run_here(study, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "slow")
    shutil.copytree(tmp_path / "out", tmp_path / "worse")
    (tmp_path / "worse" / "study.json").write_text("[]")
    answer = allrounder("ls", str(tmp_path))
    half = len(study.trials()) // 2
    assert f"{tmp_path / 'out'} {half} of {2 * half} finished study {study.name}" in flat(answer.out)
    assert f"{tmp_path / 'worse'} damaged: study.json" in flat(answer.out)


@pytest.mark.parametrize(
    ("folder", "message"), [("gone", "no such folder"), ("", "holds no run and no study")]
)
def test_ls_of_nothing_is_an_error(allrounder: Command, tmp_path: Path, folder: str, message: str):
    answer = allrounder("ls", str(tmp_path / folder))
    assert answer.code == 1 and message in answer.err


def test_log_prints_every_curve_and_epoch(
    allrounder: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "120")
    answer = allrounder("log", str(finished))
    assert answer.code == 0, answer.err
    curves, by_epoch = answer.out.split("\n\n")
    for name in (
        "linf loss",
        "natural loss",
        "linf share",
        "natural lr",
        "natural accuracy",
        "global natural",
    ):
        assert any(line.startswith(name) for line in curves.splitlines())
    assert any(line.startswith("global Linf:") for line in curves.splitlines())
    header, *rows = by_epoch.splitlines()
    assert "exchanges" in header and [row.split()[0] for row in rows] == ["1", "2", "3"]
    epoch = next(event for event in Run(finished).metrics() if event["event"] == "epoch")
    assert f"{epoch['loss']:.4g}" in rows[0]
    assert len(allrounder("log", str(finished), "--rows", "1").out.split("\n\n")[1].splitlines()) == 2


def test_log_counts_the_exchanges_of_the_trainer(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from allrounder.training.record import RunRecord
    from allrounder.training.trainer import Trainer

    exchanges: list[int] = []
    restart = Trainer.restart_learners

    def count(self: Trainer, theta: object) -> None:
        exchanges.append(self.clock.epoch(self.t + 1))
        restart(self, theta)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Trainer, "restart_learners", count)
    go(recipe(PAIR), tmp_path / "run")
    counts = RunRecord.read(finished).count_exchanges()
    assert sorted(counts.elements()) == exchanges != []


def test_log_of_a_run_without_epochs_or_of_no_run(allrounder: Command, tmp_path: Path):
    Run.open_or_create(tmp_path / "new", recipe(PAIR), resume=False)
    assert "no epoch is finished yet" in allrounder("log", str(tmp_path / "new")).out
    answer = allrounder("log", str(tmp_path))
    assert answer.code == 1 and "not a run folder" in answer.err


def test_log_prints_names_with_markup_unchanged(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "[bold]").mkdir()
    run = train(
        Recipe.load("embedded/nt", [*overrides(tmp_path), "name='[red] :x:'"]), tmp_path / "[bold]" / "x"
    )
    assert allrounder("log", str(run.folder)).out.startswith("[red] :x:: finished\n")
    listed = flat(allrounder("ls", str(tmp_path)).out)
    assert f"{run.folder} finished [red] :x: natural" in listed
