"""A run that was killed anywhere and resumed is the run that was never killed, to the bit."""

from __future__ import annotations

import json
import signal
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from torch import nn

from allrounder.errors import StorageError
from allrounder.inference.winograd_layer import WinogradConv
from allrounder.training.run import Run
from tests.support.interruptions import (
    FAST,
    HARDEST,
    POINTS,
    SCENARIOS,
    STEP,
    Killed,
    Point,
    give_up,
    perished,
    struck,
)
from tests.support.trainings import go, remains

SOME = (
    "between two learners",
    "at the end of an epoch",
    "between the receivers of an exchange",
    "at a validation",
    "between best weights and the log",
    "before the final weights",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    """What a scenario leaves when nothing happens to it."""

    @cache
    def of(scenario: str) -> dict[str, object]:
        value, model = SCENARIOS[scenario]
        return remains(go(value, tmp_path_factory.mktemp("whole") / "run", model=model).folder)

    return of


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """One killed run for every point, and how the process of each ended."""
    out = tmp_path_factory.mktemp("killed")
    return out, perished(out)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("name", POINTS)
def test_resume_of_a_killed_process_gives_identical_weights(
    name: str, killed_runs: tuple[Path, dict[str, int]], whole
):
    out, codes = killed_runs
    assert codes[name] == -signal.SIGKILL
    assert not list(out.glob(f"{name}/weights/last-*"))
    value, model = SCENARIOS[HARDEST]
    run = go(value, out / name, model=model, resume=True)
    assert remains(run.folder) == whole(HARDEST)
    assert not leftovers(run.folder)


def test_another_process_gives_identical_weights(killed_runs: tuple[Path, dict[str, int]], whole):
    assert remains(killed_runs[0] / "whole") == whole(HARDEST)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in (HARDEST, FAST, "solo")])
def test_resume_gives_identical_weights(scenario: str, name: str, tmp_path: Path, whole):
    value, model = SCENARIOS[scenario]
    with struck(POINTS[name], give_up), pytest.raises(Killed):
        go(value, tmp_path / "run", model=model)
    run = go(value, tmp_path / "run", model=model, resume=True)
    assert remains(run.folder) == whole(scenario)


@pytest.mark.parametrize("name", SOME[:2])
def test_resume_with_fast_convolutions_gives_identical_weights(name: str, tmp_path: Path, whole):
    value, model = SCENARIOS[FAST]
    with struck(POINTS[name], give_up), pytest.raises(Killed):
        go(value, tmp_path / "run", model=model)
    run = go(value, tmp_path / "run", model=model, resume=True)
    assert remains(run.folder) == whole(FAST)
    sessions = json.loads((run.folder / "env.json").read_text())["sessions"]
    winograd = f"Winograd F(4x4, 3x3) in {WinogradConv(nn.Conv2d(64, 64, 3)).library}"
    layers = {"conv1": "input gradient as a matrix product", "conv2": winograd}
    assert [session["fast_conv"] for session in sessions] == [layers, layers]


def test_repeated_kills_give_identical_weights(tmp_path: Path, whole):
    value, model = SCENARIOS[HARDEST]
    for _ in range(3):
        with struck(Point(STEP, 7), give_up), pytest.raises(Killed):
            go(value, tmp_path / "run", model=model, resume=True)
    run = go(value, tmp_path / "run", model=model, resume=True)
    assert remains(run.folder) == whole(HARDEST)


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, whole):
    def no_space() -> None:
        raise OSError(28, "No space left on device")

    value, model = SCENARIOS["solo"]
    with struck(POINTS["after a first tensor file"], no_space), pytest.raises(StorageError, match="full"):
        go(value, tmp_path / "run", model=model)
    before = Run(tmp_path / "run").latest_checkpoint()
    assert before is not None and before.name == "step-00000004"
    run = go(value, tmp_path / "run", model=model, resume=True)
    assert remains(run.folder) == whole("solo")


CALLS = (
    STEP,
    "allrounder.training.learner:Learner.load_global_weights",
    "allrounder.training.run:append_line",
    "allrounder.system.tensor_folders:save_file",
    "allrounder.system.tensor_folders:write_json",
    "pathlib:Path.rename",
    "pathlib:Path.replace",
    "shutil:rmtree",
)
SWEEP = [(HARDEST, call) for call in CALLS] + [(name, STEP) for name in SCENARIOS if name != HARDEST]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("scenario", "target"), SWEEP)
def test_resume_after_a_kill_at_any_call_gives_identical_weights(
    scenario: str, target: str, after: bool, tmp_path: Path, whole
):
    value, model = SCENARIOS[scenario]
    deaths = 0
    for call in count(1):
        out = tmp_path / str(call)
        try:
            with struck(Point(target, call, after), give_up):
                go(value, out, model=model)
            break
        except Killed:
            deaths = call
            run = go(value, out, model=model, resume=True)
            assert remains(run.folder) == whole(scenario), call
    assert deaths
