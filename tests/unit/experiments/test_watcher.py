"""The state of folders: runs and studies that are missing, running, interrupted, finished or damaged."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allrounder.experiments import watcher
from allrounder.experiments.manifest import evaluation_folder
from allrounder.experiments.watcher import Watcher
from allrounder.system.files import lock_folder
from allrounder.training.record import RunRecord
from allrounder.training.run import Run
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.pipelines import pipeline
from tests.support.studies import run_here, tiny_study
from tests.support.trainings import PAIR, contents, go, recipe, remains


def read(folder: Path, selected: int | None = None) -> dict[str, Any]:
    """The state as the page gets it."""
    return json.loads(json.dumps(Watcher(folder).read_state(time.time(), selected), allow_nan=False))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go(recipe(PAIR), tmp_path_factory.mktemp("runs") / "pair").folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    run_here(replace(tiny_study(folder), seeds=(0,)), folder / "out")
    return folder / "out"


def interrupt(folder: Path) -> None:
    """Make a run look as after an interruption in its second epoch."""
    shutil.rmtree(folder / "weights")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if '"epoch": 1' in line))


def test_a_folder_that_does_not_exist_yet_is_awaited(tmp_path: Path):
    state = read(tmp_path / "later")
    assert state["phase"] == "waiting" and "does not exist yet" in state["message"]
    assert "holds no run and no study yet" in read(tmp_path)["message"]


def test_a_finished_run(finished: Path):
    state = read(finished)
    assert (state["kind"], state["phase"], state["progress"], state["eta"]) == ("run", "finished", 1.0, None)
    best = RunRecord.read(finished).best_validation()
    assert best is not None and state["best_epoch"] == best["epoch"]
    assert [chart["name"] for chart in state["charts"]] == ["validation", "loss", "accuracy", "share"]
    assert state["charts"][0]["marks"] == [[1.0, "exchange"], [2.0, "exchange"]]
    events = Run(finished).metrics()
    losses = [event["loss"] for event in events if event.get("learner") == "linf"]
    assert state["charts"][1]["series"][0] == {
        **state["charts"][1]["series"][0], "name": "linf", "x": [1, 2, 3], "y": losses,
    }  # fmt: skip


def test_an_interrupted_and_a_running_run(run: Path):
    interrupt(run)
    state = read(run)
    assert (state["phase"], state["epoch"], state["epochs"]) == ("interrupted", 1, 3)
    assert state["eta"] is None
    with lock_folder(run, "training"):
        running = read(run)
    assert running["phase"] == "running" and running["eta"] > 0
    assert running["elapsed"] > state["elapsed"]


def test_the_time_since_the_last_change_is_that_of_the_log_or_the_session(run: Path):
    interrupt(run)
    for name, age in (("metrics.jsonl", 900), ("env.json", 50)):
        os.utime(run / name, (1e9 - age, 1e9 - age))
    with lock_folder(run, "training"):
        state = Watcher(run).read_state(1e9)
        earlier = Watcher(run).read_state(1e9 - 5000)
    logged = sum({e["t"]: e["seconds"] for e in Run(run).metrics() if e["event"] == "epoch"}.values())
    validated = sum(e["seconds"] for e in Run(run).metrics() if e["event"] == "validation")
    assert state["elapsed"] == pytest.approx(logged + validated + 50)
    assert earlier["elapsed"] == pytest.approx(logged + validated), "clocks of two machines may differ"


def test_a_run_before_its_first_epoch(tmp_path: Path):
    Run.open_or_create(tmp_path / "new", recipe(PAIR), resume=False)
    state = read(tmp_path / "new")
    assert (state["phase"], state["epoch"], state["charts"]) == ("interrupted", 0, [])


def test_a_line_that_is_being_written_is_left_out(run: Path):
    before = read(run)["charts"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epoch", "t": 12, "epo')
    assert read(run)["charts"] == before


@pytest.mark.parametrize("name", ["recipe.toml", "metrics.jsonl", "format.json"])
def test_a_damaged_run_is_described_until_it_is_intact_again(run: Path, name: str):
    watch = Watcher(run)
    intact = (run / name).read_bytes()
    assert watch.read_state(0.0)["phase"] == "finished"
    (run / name).write_bytes(b"{ damaged }\n" * 30)
    state = watch.read_state(0.0)
    assert state["phase"] == "damaged" and name in state["message"]
    (run / name).write_bytes(intact)
    assert watch.read_state(0.0)["phase"] == "finished"


def test_a_run_that_appears_and_grows_is_followed(finished: Path, tmp_path: Path):
    watch = Watcher(tmp_path / "run")
    assert watch.read_state(0.0)["phase"] == "waiting"
    shutil.copytree(finished, tmp_path / "run")
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.rmtree(tmp_path / "run" / "weights")
    for count in range(len(lines) + 1):
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:count]))
        logged = [json.loads(line) for line in lines[:count]]
        epochs = [event["epoch"] for event in logged if event["event"] == "epoch"]
        assert watch.read_state(0.0)["epoch"] == max(epochs, default=0)


def test_files_that_did_not_change_are_read_once(finished: Path, monkeypatch: pytest.MonkeyPatch):
    reads: list[Path] = []
    original = RunRecord.read

    def count(folder: Path) -> RunRecord:
        reads.append(folder)
        return original(folder)

    monkeypatch.setattr(watcher.RunRecord, "read", count)
    watch = Watcher(finished)
    assert watch.read_state(0.0) == watch.read_state(0.0)
    assert reads == [finished]


def test_a_study_has_one_line_per_training(study: Path, tmp_path: Path):
    folder = Path(shutil.copytree(study, tmp_path / "out"))
    state = read(folder)
    assert (state["kind"], state["phase"], state["label"]) == ("study", "finished", "tiny")
    rows = [(part["label"], part["seed"], part["phase"], part["message"]) for part in state["parts"]]
    assert rows == [("slow", 0, "finished", "evaluated"), ("fast", 0, "finished", "evaluated")]
    interrupt(folder / "slow" / "seed-0")
    shutil.rmtree(folder / "fast")
    with lock_folder(folder / "slow" / "seed-0", "training"):
        state = read(folder)
    assert [part["phase"] for part in state["parts"]] == ["running", "waiting"]
    assert state["phase"] == "running" and state["progress"] == 0.25 and state["selected"] == 0
    assert state["eta"] > state["parts"][0]["eta"] > 0, "the second training takes time too"


def test_the_curves_of_a_study_are_those_of_the_selected_training(study: Path):
    curves = [read(study, number)["charts"] for number in (0, 1)]
    assert curves[0] != curves[1] and all(chart["series"] for chart in curves[0])
    assert read(study, 1)["selected"] == 1
    assert read(study, 77)["selected"] == read(study)["selected"] == 1, "the last one, if none is running"


def test_a_study_shows_evaluations_and_damage(study: Path, tmp_path: Path):
    folder = Path(shutil.copytree(study, tmp_path / "out"))
    evaluation = evaluation_folder(folder / "slow" / "seed-0", "best")
    (evaluation / "outcome.safetensors").unlink()
    (folder / "fast" / "seed-0" / "recipe.toml").write_text("damaged")
    with lock_folder(evaluation, "evaluating"):
        assert [part["phase"] for part in read(folder)["parts"]] == ["evaluating", "damaged"]
    state = read(folder, 1)
    assert state["parts"][0]["message"] == "not evaluated yet" and state["phase"] == "damaged"
    assert "recipe.toml" in state["parts"][1]["message"] and state["charts"] == []
    (folder / "study.json").write_text("[]")
    assert read(folder)["phase"] == "damaged"


def test_a_pipeline_shows_its_stages(tmp_path: Path):
    go(pipeline("soup"), tmp_path / "run")
    state = read(tmp_path / "run")
    assert (state["kind"], state["phase"], state["progress"]) == ("pipeline", "finished", 1.0)
    assert [part["label"] for part in state["parts"]] == ["base", "linf", "natural"]
    assert [part["phase"] for part in state["parts"]] == ["finished"] * 3
    assert read(tmp_path / "run", 1)["charts"][0]["series"]


def test_a_pipeline_in_a_study_is_followed_by_its_stages(study: Path, tmp_path: Path):
    folder = Path(shutil.copytree(study, tmp_path / "out"))
    trial = folder / "slow" / "seed-0"
    shutil.rmtree(trial)
    with struck(Point(STEP, 8), give_up), pytest.raises(Killed):
        go(pipeline("soup"), trial)
    stages = [RunRecord.read(stage) for stage in sorted((trial / "stages").iterdir())]
    state = read(folder, 0)
    part = state["parts"][0]
    assert part["epoch"] == sum(stage.epoch for stage in stages) > 0
    assert part["epochs"] == sum(stage.epochs for stage in stages)
    assert state["charts"] and state["charts"] == read(stages[-1].folder)["charts"]


class Watches:
    """A listener that reads the state after every step of a training."""

    def __init__(self, folder: Path) -> None:
        self.watcher = Watcher(folder)
        self.states: list[dict[str, Any]] = []

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None:
        self.states.append(self.watcher.read_state(time.time()))

    def log(self, text: str) -> None: ...


def test_watching_changes_neither_a_training_nor_its_folder(finished: Path, tmp_path: Path):
    listener = Watches(tmp_path / "run")
    with struck(Point(STEP, 11), give_up), pytest.raises(Killed):
        go(recipe(PAIR), tmp_path / "run", progress=listener)
    go(recipe(PAIR), tmp_path / "run", progress=listener, resume=True)
    assert {state["phase"] for state in listener.states} == {"running"}
    epochs = [state["epoch"] for state in listener.states]
    assert epochs[0] == 0 and epochs[-1] == 3
    assert remains(tmp_path / "run") == remains(finished)
    before = contents(tmp_path / "run")
    assert listener.watcher.read_state(time.time())["phase"] == "finished"
    assert contents(tmp_path / "run") == before
