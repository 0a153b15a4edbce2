"""Several processes evaluate what one would: the same bytes, whatever happens to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allrounder.report.outcome import OUTCOME_FILE, Outcome
from tests.distributed.ranks import FAILED, SAVED, run_scenarios
from tests.support.evaluations import read_outcome_bytes


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of all scenarios, and how their ranks ended."""
    out = tmp_path_factory.mktemp("shared")
    return out, run_scenarios("evaluation_scenarios", out)


@pytest.mark.parametrize(("name", "size"), [("two", 2), ("three", 3)])
def test_ranks_give_identical_outcome_and_only_rank_0_writes(
    name: str, size: int, scenarios: tuple[Path, dict[str, Any]]
):
    out, results = scenarios
    assert results[name][0] == [0] * size, results[name]
    assert read_outcome_bytes(out / name / "0") == read_outcome_bytes(out / "serial")
    assert [path.name for path in sorted(out.glob(f"{name}/[0-9]"))] == ["0"]
    returned = {(out / name / f"returned-{rank}.safetensors").read_bytes() for rank in range(size)}
    assert returned == {read_outcome_bytes(out / "serial")}


def test_ranks_give_identical_confidences(scenarios: tuple[Path, dict[str, Any]]):
    out, results = scenarios
    assert results["checked"][0] == [0, 0], results["checked"]
    serial = read_outcome_bytes(out / "checked serial")
    assert read_outcome_bytes(out / "checked" / "0") == serial
    assert {(out / "checked" / f"returned-{rank}.safetensors").read_bytes() for rank in (0, 1)} == {serial}
    assert Outcome.load(out / "checked serial" / OUTCOME_FILE).confidence is not None


def test_ranks_continue_an_evaluation_of_one_process(scenarios: tuple[Path, dict[str, Any]]):
    out, results = scenarios
    assert results["half"][0] == [0, 0], results["half"]
    assert read_outcome_bytes(out / "half" / "0") == read_outcome_bytes(out / "serial")


def test_killed_rank_is_named_and_its_results_are_kept(scenarios: tuple[Path, dict[str, Any]]):
    out, results = scenarios
    codes, errors = results["killed"]
    assert codes == [FAILED, -9]
    assert "rank 1 on" in errors[0] and "killed" in errors[0], errors
    assert results["killed, kept"] == 24, "the natural lines of both ranks"
    assert read_outcome_bytes(out / "killed" / "0") == read_outcome_bytes(out / "slow serial")


def test_signal_to_one_rank_stops_all_and_one_process_continues(scenarios: tuple[Path, dict[str, Any]]):
    out, results = scenarios
    codes, errors = results["stopped"]
    assert codes == [SAVED, SAVED], errors
    assert all("SIGTERM at rank 1 on" in text and "call again" in text for text in errors), errors
    assert read_outcome_bytes(out / "stopped" / "0") == read_outcome_bytes(out / "slow serial")


def test_rank_with_another_network_is_named_before_writing(
    scenarios: tuple[Path, dict[str, Any]],
):
    out, results = scenarios
    codes, errors = results["other network"]
    assert codes == [FAILED, FAILED]
    assert all("rank 1 on" in text and "has network" in text for text in errors), errors
    assert not (out / "other network").exists()


def test_run_is_sent_from_rank_0_to_other_ranks(scenarios: tuple[Path, dict[str, Any]]):
    out, results = scenarios
    assert results["run"][0] == [0, 0], results["run"]
    assert not (out / "run" / "run-1").exists()


@pytest.mark.parametrize(("name", "field"), [("workers", "workers: got 2"), ("examples", "keep_examples")])
def test_unsupported_options_are_refused_on_several_ranks(
    name: str, field: str, scenarios: tuple[Path, dict[str, Any]]
):
    codes, errors = scenarios[1][name]
    assert codes == [FAILED, FAILED]
    assert all(text.startswith(f"WorldError: {field}") and "leave it out" in text for text in errors), errors
