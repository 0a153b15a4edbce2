"""Several processes on one folder: one writes, the others get an error; readers see a consistent state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allrounder.cli.run_watch import make_routes
from allrounder.errors import RunError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.collect import read_results
from allrounder.system.files import lock_folder
from allrounder.training.record import RunRecord
from allrounder.training.run import Run
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, EndsAfter, go, recipe

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def test_a_second_training_in_a_folder_is_refused_and_changes_nothing(tmp_path: Path):
    with pytest.raises(KeyError):
        go(recipe(PAIR), tmp_path / "run", progress=EndsAfter(4))
    with lock_folder(tmp_path / "run", "training"):
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        with pytest.raises(RunError, match="another process is training here; wait for it or stop it"):
            go(recipe(PAIR), tmp_path / "run", resume=True)
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert go(recipe(PAIR), tmp_path / "run", resume=True).finished


def test_a_second_evaluation_in_a_folder_is_refused(tmp_path: Path):
    data, network = blobs(12), tiny().eval()
    options = EvalOptions(check="skip")
    evaluate(network, data, probes=["pgd-1@Linf:0.1"], out=tmp_path / "eval", options=options)
    with (
        lock_folder(tmp_path / "eval", "evaluating"),
        pytest.raises(RunError, match="another process is evaluating here"),
    ):
        evaluate(network, data, probes=["pgd-1@Linf:0.1"], out=tmp_path / "eval", options=options)


class ReadsAfterEveryStep:
    """A listener that reads the run folder as reports and the live page do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.send_state = make_routes(folder)["/state.json"]
        self.epochs: list[int] = []

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None:
        state: dict[str, Any] = json.loads(self.send_state({})[1])
        record = RunRecord.read(self.folder)
        assert state["phase"] == "running" and record.running
        assert state["epoch"] == record.epoch == t // 3
        assert [event["t"] for event in Run(self.folder).metrics()] == sorted(
            event["t"] for event in record.events
        )
        assert read_results([self.folder]).entries[0].outcomes == {}
        self.epochs.append(record.epoch)

    def log(self, text: str) -> None: ...


def test_readers_see_a_consistent_state_after_every_step_of_a_training(tmp_path: Path):
    reader = ReadsAfterEveryStep(tmp_path / "run")
    run = go(recipe(PAIR), tmp_path / "run", progress=reader)
    assert reader.epochs == [0, 0, 1, 1, 1, 2, 2, 2, 3] and run.finished


def test_the_live_page_sends_hostile_names_as_json_and_never_as_a_page(tmp_path: Path):
    name = json.dumps(HOSTILE)
    run = go(recipe(f"name = {name}\nabout = {name}\n" + PAIR), tmp_path / "run<b>")
    routes = make_routes(run.folder)
    kind, content = routes["/state.json"]({})
    assert kind == "application/json" and json.loads(content)["label"] == HOSTILE
    pages = [routes[path]({})[1] for path in routes if path not in ("/state.json", "/plotly.js")]
    assert pages and not any(b"onerror" in page for page in pages)


@pytest.mark.parametrize("path", ["/recipe.toml", "/../run/recipe.toml", "/%2e%2e/x", "/run", "//etc/passwd"])
def test_the_live_page_has_no_path_for_files(path: str, tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc")
    assert path not in make_routes(tmp_path)
