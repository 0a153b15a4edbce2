"""The events for TensorBoard are those of the log, also after kills, and change no result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from allrounder.config.fields import canonical
from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe
from allrounder.training import tensorboard
from allrounder.training.record import RunRecord
from tests.support.events import expect_events, read_events
from tests.support.interruptions import POINTS, Killed, Point, give_up, struck
from tests.support.pipelines import pipeline
from tests.support.trainings import PAIR, SOLO, go, recipe, remains

LOGGED = ("seed = 5", "tensorboard = true\nseed = 5")
KILLS = (
    "inside an epoch",
    "at the end of an epoch",
    "while an event is written",
    "at a validation",
    "between best weights and a checkpoint",
    "before the final weights",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go(recipe(PAIR, LOGGED), tmp_path_factory.mktemp("runs") / "run").folder


def test_every_number_of_the_log_is_an_event(finished: Path):
    curves = read_events(finished)
    assert curves == expect_events(finished)
    names = {"loss/linf", "accuracy/natural", "lr/linf", "share/natural", "validation/natural"}
    assert (
        names | {"validation/Linf:0.1", "train/natural", "exchanges", "drift", "distance/linf"}
        <= curves.keys()
    )
    assert [t for t, _ in curves["loss/linf"]] == [3, 6, 9]
    assert [number for _, number in curves["exchanges"]] == [1.0, 1.0, 0.0]


def test_events_change_nothing_else(finished: Path, tmp_path: Path):
    plain = remains(go(recipe(PAIR), tmp_path / "run").folder)
    logged = {name: left for name, left in remains(finished).items() if "tfevents" not in name}
    text = str(logged.pop("recipe.toml"))
    assert "tensorboard = true" in text and "tensorboard" not in str(plain.pop("recipe.toml"))
    assert logged == plain and not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize("name", KILLS)
def test_after_a_kill_no_event_is_missing_and_none_appears_twice(name: str, tmp_path: Path):
    value = recipe(PAIR, LOGGED)
    with struck(POINTS[name], give_up), pytest.raises(Killed):
        go(value, tmp_path / "run")
    go(value, tmp_path / "run", resume=True)
    assert read_events(tmp_path / "run") == expect_events(tmp_path / "run")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_events_may_start_and_end_when_a_run_is_resumed(tmp_path: Path):
    with struck(Point("allrounder.training.learner:Learner.step", 12), give_up), pytest.raises(Killed):
        go(recipe(PAIR), tmp_path / "run")
    with struck(Point("allrounder.training.learner:Learner.step", 4), give_up), pytest.raises(Killed):
        go(recipe(PAIR, LOGGED), tmp_path / "run", resume=True)
    assert read_events(tmp_path / "run") == expect_events(tmp_path / "run") != {}
    go(recipe(PAIR, ("seed = 5", "tensorboard = false\nseed = 5")), tmp_path / "run", resume=True)
    assert RunRecord.read(tmp_path / "run").finished


def test_the_key_is_no_part_of_the_fingerprint():
    plain, logged = recipe(PAIR), recipe(PAIR, LOGGED)
    assert plain.fingerprint() == logged.fingerprint()
    assert plain.differences(logged) == []
    assert canonical(logged) == plain != logged
    assert "tensorboard" not in plain.dumps() and Recipe.loads(logged.dumps()) == logged


def test_every_stage_of_a_pipeline_has_its_own_events(tmp_path: Path):
    go(pipeline("soup", LOGGED), tmp_path / "run")
    stages = sorted((tmp_path / "run" / "stages").iterdir())
    assert [stage.name for stage in stages] == ["base", "linf", "natural"]
    for stage in stages:
        record = RunRecord.read(stage)
        losses = read_events(stage)[f"loss/{record.learners[0]}"]
        assert len(losses) == record.epochs, stage
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_an_override_turns_events_on():
    assert Recipe.load("embedded/nt", ["tensorboard=true"]).tensorboard is True
    with pytest.raises(RecipeError, match="tensorboard: expected true or false, got 'yes'"):
        Recipe.load("embedded/nt", ["tensorboard=yes"])


def test_without_the_package_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RecipeError, match=r'tensorboard: got true.*pip install "allrounder\[tensorboard\]"'):
        go(recipe(SOLO, LOGGED), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert go(recipe(SOLO), tmp_path / "run").finished


class Messages:
    """A listener that keeps the messages of a training."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None: ...

    def log(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("place", ["open", "write"])
def test_a_failure_to_write_events_is_reported_once_and_ends_no_training(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboard.EventWriter, place, no_space)
    messages = Messages()
    run = go(recipe(PAIR, LOGGED), tmp_path / "run", progress=messages)
    warnings = [text for text in messages.texts if "TensorBoard" in text]
    assert len(warnings) == 1 and "No space left" in warnings[0] and "continues" in warnings[0]
    assert run.finished and run.log_listener is None


def test_a_file_in_the_place_of_the_folder_ends_no_training(tmp_path: Path):
    with struck(Point("allrounder.training.learner:Learner.step", 12), give_up), pytest.raises(Killed):
        go(recipe(PAIR), tmp_path / "run")
    (tmp_path / "run" / "tensorboard").write_text("not a folder")
    messages = Messages()
    assert go(recipe(PAIR, LOGGED), tmp_path / "run", resume=True, progress=messages).finished
    assert len([text for text in messages.texts if "TensorBoard" in text]) == 1
