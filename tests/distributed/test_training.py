"""Several processes train what one would: the same bits, whatever happens to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from allrounder.training.run import Run
from tests.distributed.ranks import FAILED, SAVED, RankResults, run_scenarios
from tests.support.events import expect_events, read_events
from tests.support.paths import PROJECT
from tests.support.pipelines import PIPELINES
from tests.support.trainings import remains

Results = dict[str, RankResults]
ROOT = PROJECT


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of all scenarios, and how their ranks ended."""
    out = tmp_path_factory.mktemp("ranks")
    return out, run_scenarios("training_scenarios", out)


def trained(folder: Path) -> dict[str, Any]:
    """The files of a run, without the logged communication, which a single process does not have."""
    left: dict[str, Any] = remains(folder)
    logs = {name: events for name, events in left.items() if name.endswith("metrics.jsonl")}
    return left | {name: [e for e in events if e["event"] != "comm_bytes"] for name, events in logs.items()}


@pytest.mark.parametrize("name", ["in order", "swapped", "backwards"])
def test_any_placement_gives_identical_weights(name: str, scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert set(results[name][0]) == {0}, results[name]
    assert trained(out / name) == trained(out / "serial")


def test_processes_with_fast_convolutions_give_identical_weights(scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert set(results["fast"][0]) == {0}, results["fast"]
    assert trained(out / "fast") == trained(out / "fast serial")


def test_rank_0_writes_the_events_of_all_ranks(scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert set(results["events"][0]) == {0}, results["events"]
    assert len(list((out / "events" / "tensorboard").iterdir())) == 1
    curves = read_events(out / "events")
    assert curves == expect_events(out / "events") and {"loss/linf", "loss/l2"} <= curves.keys()


def test_resume_with_fewer_ranks_gives_identical_weights(scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert results["killed, resumed"][0] == [0, 0], results["killed, resumed"]
    assert trained(out / "killed") == trained(out / "serial")


def test_killed_rank_is_named(scenarios: tuple[Path, Results]):
    codes, errors = scenarios[1]["killed"]
    assert codes == [FAILED, -9, FAILED]
    assert all("WorldError" in errors[rank] and "rank 1 on" in errors[rank] for rank in (0, 2)), errors
    assert "killed" in errors[0] + errors[2]


def test_hanging_rank_is_named_after_the_timeout(scenarios: tuple[Path, Results]):
    codes, errors = scenarios[1]["hung"]
    assert codes == [FAILED, -9, FAILED]
    assert "rank 1 on" in errors[0] and "took no step for 6 s, its last heartbeat was in step" in errors[0], (
        errors
    )


def test_error_of_a_rank_reaches_all_ranks(scenarios: tuple[Path, Results]):
    codes, errors = scenarios[1]["failed"]
    assert codes[:2] == [FAILED, FAILED] and codes[2] != 0
    assert all(
        "rank 2 on" in errors[rank] and "No space left on device" in errors[rank] for rank in (0, 1)
    ), errors


def test_rank_with_another_recipe_is_named_before_writing(scenarios: tuple[Path, Results]):
    out, results = scenarios
    codes, errors = results["other recipe"]
    assert codes == [FAILED, FAILED]
    assert all("rank 1 on" in text and "has recipe" in text for text in errors), errors
    assert not (out / "other recipe").exists()


@pytest.mark.parametrize(("name", "rank"), [("stopped", 2), ("stopped, shared", 1)])
def test_signal_to_one_rank_stops_all_after_the_same_step(
    name: str, rank: int, scenarios: tuple[Path, Results]
):
    out, results = scenarios
    codes, errors = results[name]
    assert set(codes) == {SAVED}, errors
    assert len(set(errors)) == 1 and f"SIGTERM at rank {rank} on" in errors[0], errors
    if name == "stopped":  # it was resumed by a single process
        assert trained(out / name) == trained(out / "serial")
    else:
        point = Run(out / name).latest_checkpoint()
        assert point is not None and f"after step {int(point.name[-8:])}," in errors[0]


@pytest.mark.parametrize("name", PIPELINES)
def test_distributed_pipeline_gives_identical_weights(name: str, scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert results[name][0] == [0, 0], results[name]
    assert trained(out / name) == trained(out / f"{name} serial")
    if name == "soup":
        codes, errors = results["soup, stopped"]
        assert codes == [SAVED, SAVED] and len(set(errors)) == 1, errors
        assert "stages/linf: SIGTERM at rank 1 on" in errors[0], "inside its second training"


def test_shared_learners_give_equal_weights_up_to_rounding(scenarios: tuple[Path, Results]):
    out, results = scenarios
    assert set(results["shared"][0]) == {0}, results["shared"]
    one, several = Run(out / "uneven serial"), Run(out / "shared")
    for which in ("global", "linf", "natural", "l2"):
        expected, weights = one.weights(which)[0], several.weights(which)[0]
        for name, tensor in expected.items():
            assert torch.allclose(weights[name], tensor, rtol=1e-9, atol=1e-11), (which, name)
    assert json.loads((several.folder / "env.json").read_text())["sessions"][0]["ranks"] == {
        "linf": [0, 1, 2],
        "natural": [3],
        "l2": [4, 5],
    }
    losses = [[e["loss"] for e in run.metrics() if e["event"] == "epoch"] for run in (one, several)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize(("name", "size"), [("swapped", 2), ("in order", 3)])
def test_bytes_sent_equal_the_formula(name: str, size: int, scenarios: tuple[Path, Results]):
    out, _ = scenarios
    run = Run(out / name)
    weights, _ = run.weights()
    theta = sum(tensor.nbytes for tensor in weights.values())
    sent = [event for event in run.metrics() if event["event"] == "comm_bytes"]
    assert [event["t"] for event in sent] == [2, 4, 6, 8, 9, 9]
    # One starting point, then every learner's part: at three validations, two exchanges and the end.
    collects = 3 + 2 + 1
    assert sum(event.get("weights", 0) for event in sent) == (size - 1) * theta * (1 + 3 * collects)
    assert all(event["states"] > 0 and "gradients" not in event for event in sent)
