"""The state of trainings as plain values: progress, time left and charts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allrounder.experiments.live import (
    Status,
    combine,
    combine_stages,
    describe_training,
    draw_charts,
    to_table,
)
from allrounder.training.record import Event, RunRecord

RECIPE = {
    "name": "two",
    "epochs": 4,
    "task": [{"name": "linf"}, {"name": "natural"}],
    "validation": {"every": 2},
    "mix": {"exchange": {"start": 2, "every": 1}},
}


def epoch(number: int, learner: str, loss: float = 1.0) -> Event:
    facts = {"loss": loss, "accuracy": 0.5, "share": 0.25, "lr": 0.1, "seconds": 2.0}
    return {"event": "epoch", "t": 5 * number, "epoch": number, "learner": learner, **facts}


def record(epochs: int = 3, *, running: bool = True, finished: bool = False, loss: float = 1.0) -> RunRecord:
    events = [epoch(n, learner, loss) for n in range(1, epochs + 1) for learner in ("linf", "natural")]
    accuracies = {"natural": 0.8, "robust": {"Linf:0.1": 0.4, "L2:1": 0.3}, "score": 1.15, "seconds": 1.0}
    if epochs >= 2:
        events.append({"event": "validation", "t": 10, "epoch": 2, **accuracies})
    return RunRecord(Path("run"), RECIPE, tuple(events), finished, running)


def test_a_running_training_has_a_progress_and_a_time_left():
    status = describe_training(record(), since=0.5)
    assert (status.label, status.phase, status.epoch, status.epochs) == ("two", "running", 3, 4)
    assert status.progress == 0.75 and status.message == "epoch 3 of 4 done"
    assert status.elapsed == 3 * 2.0 + 1.0 + 0.5
    assert status.eta == 1.5 + 1.0, "the rest of an epoch, and a validation"
    assert status.epoch_seconds == 2.0 and status.steps_per_second == 2.5


def test_an_interrupted_training_has_no_time_left_and_its_time_stands_still():
    status = describe_training(record(running=False), since=1000.0)
    assert (status.phase, status.eta, status.elapsed) == ("interrupted", None, 7.0)


def test_a_finished_training_is_at_its_end():
    status = describe_training(record(4, running=False, finished=True), since=1000.0)
    assert (status.phase, status.progress, status.eta) == ("finished", 1.0, None)


def test_a_training_before_its_first_epoch():
    status = describe_training(record(0), since=3.0)
    assert (status.phase, status.progress, status.eta, status.elapsed) == ("running", 0.0, None, 3.0)


def test_charts_have_all_curves_and_mark_exchanges():
    charts = {chart.name: chart for chart in draw_charts(record())}
    assert list(charts) == ["validation", "loss", "accuracy", "share"]
    series = {item.name: (item.x, item.y) for item in charts["validation"].series}
    assert series == {"natural": ((2.0,), (80.0,)), "Linf:0.1": ((2.0,), (40.0,)), "L2:1": ((2.0,), (30.0,))}
    assert "upper bound" in charts["validation"].about
    assert charts["validation"].y.percent and not charts["loss"].y.percent
    assert [item.name for item in charts["loss"].series] == ["linf", "natural"]
    assert all(chart.marks == ((2.0, "exchange"), (3.0, "exchange")) for chart in charts.values())
    assert draw_charts(record(0)) == []


def test_numbers_that_json_does_not_have_are_left_out():
    table = to_table("run", describe_training(record(), 0.0), record=record(loss=float("nan")))
    text = json.dumps(table, allow_nan=False)
    (losses,) = [chart for chart in json.loads(text)["charts"] if chart["name"] == "loss"]
    assert losses["series"][0]["y"] == [None, None, None]


DONE = Status("a", "finished", progress=1.0, elapsed=10.0, epoch=4, epochs=4)
HALF = Status("b", "running", progress=0.5, elapsed=20.0, eta=18.0, epoch=2, epochs=4)
TODO = Status("c", "waiting")
EVALUATING = Status("d", "evaluating", progress=1.0, elapsed=5.0)


def test_a_study_weights_its_trainings_by_their_cost():
    whole = combine("study", [DONE, HALF, TODO], [1.0, 4.0, 5.0])
    assert (whole.phase, whole.epoch, whole.epochs) == ("running", 1, 3)
    assert whole.progress == pytest.approx(0.3) and whole.elapsed == 30.0
    # 30 s for 3 units of work: the last training will take 50 s.
    assert whole.eta == pytest.approx(18.0 + 50.0)
    assert whole.message == "1 of 3 trainings finished, 1 running"


def test_trainings_at_the_same_time_share_what_is_left():
    assert combine("study", [DONE, HALF, HALF, TODO], [1.0, 4.0, 4.0, 5.0]).eta == pytest.approx(
        (36 + 50) / 2
    )
    assert combine("study", [HALF, HALF], [1.0, 1.0]).eta == 18.0, "no shorter than the longest"


@pytest.mark.parametrize(
    ("parts", "phase"),
    [
        ([DONE, DONE], "finished"),
        ([DONE, TODO], "interrupted"),
        ([TODO, TODO], "waiting"),
        ([DONE, Status("d", "damaged")], "damaged"),
        ([HALF, Status("d", "damaged")], "running"),
        ([EVALUATING, TODO], "running"),
    ],
)
def test_the_phase_of_a_study_is_that_of_its_trainings(parts: list[Status], phase: str):
    whole = combine("study", parts, [1.0] * len(parts))
    assert whole.phase == phase
    assert (whole.eta is None) == (phase != "running")


def test_a_study_whose_trainings_are_all_finished_has_no_time_left():
    whole = combine("study", [DONE, EVALUATING], [1.0, 1.0])
    assert (whole.phase, whole.progress, whole.eta) == ("running", 1.0, None)
    assert whole.message == "2 of 2 trainings finished, 1 evaluating"


def test_a_pipeline_counts_the_stages_that_started():
    whole = combine_stages(Status("soup", "running", epochs=4), [DONE, HALF])
    assert (whole.epoch, whole.epochs, whole.progress, whole.eta) == (6, 8, 0.75, 18.0)
    assert "later stages are counted when they start" in whole.message
    finished = combine_stages(Status("soup", "finished", epochs=4), [DONE, DONE])
    assert finished.progress == 1.0 and "later" not in finished.message
