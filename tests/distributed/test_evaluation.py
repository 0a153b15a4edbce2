"""Several processes evaluate what one would: the same bytes, whatever happens to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import FAILED, SAVED
from tests.distributed.test_training import ROOT
from tests.support.evaluations import read_outcome_bytes


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of all scenarios, and how their ranks ended."""
    out = tmp_path_factory.mktemp("shared")
    words = [sys.executable, "-m", "tests.distributed.evaluation_scenarios", str(out)]
    told = subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    assert told.returncode == 0, told.stderr.decode()
    return out, json.loads((out / "results.json").read_text())


@pytest.mark.parametrize(("name", "size"), [("two", 2), ("three", 3)])
def test_ranks_come_to_the_bytes_of_one_process_and_rank_0_alone_writes(
    name: str, size: int, happened: tuple[Path, dict[str, Any]]
):
    out, results = happened
    assert results[name][0] == [0] * size, results[name]
    assert read_outcome_bytes(out / name / "0") == read_outcome_bytes(out / "serial")
    assert [path.name for path in sorted(out.glob(f"{name}/[0-9]"))] == ["0"]
    returned = {(out / name / f"returned-{rank}.safetensors").read_bytes() for rank in range(size)}
    assert returned == {read_outcome_bytes(out / "serial")}


def test_ranks_go_on_with_what_one_process_began(happened: tuple[Path, dict[str, Any]]):
    out, results = happened
    assert results["half"][0] == [0, 0], results["half"]
    assert read_outcome_bytes(out / "half" / "0") == read_outcome_bytes(out / "serial")


def test_a_killed_rank_is_named_and_what_it_had_left_is_kept(happened: tuple[Path, dict[str, Any]]):
    out, results = happened
    codes, said = results["killed"]
    assert codes == [FAILED, -9]
    assert "rank 1 on" in said[0] and "killed" in said[0], said
    assert results["killed, kept"] == 24, "the natural lines of both ranks"
    assert read_outcome_bytes(out / "killed" / "0") == read_outcome_bytes(out / "slow serial")


def test_a_signal_to_one_rank_stops_all_and_one_process_goes_on(happened: tuple[Path, dict[str, Any]]):
    out, results = happened
    codes, said = results["stopped"]
    assert codes == [SAVED, SAVED], said
    assert all("SIGTERM at rank 1 on" in text and "call again" in text for text in said), said
    assert read_outcome_bytes(out / "stopped" / "0") == read_outcome_bytes(out / "slow serial")


def test_a_rank_with_another_network_is_named_before_anything_is_written(
    happened: tuple[Path, dict[str, Any]],
):
    out, results = happened
    codes, said = results["other network"]
    assert codes == [FAILED, FAILED]
    assert all("rank 1 on" in text and "has network" in text for text in said), said
    assert not (out / "other network").exists()


def test_a_run_that_rank_0_alone_can_read_is_sent_to_the_others(happened: tuple[Path, dict[str, Any]]):
    out, results = happened
    assert results["run"][0] == [0, 0], results["run"]
    assert not (out / "run" / "run-1").exists()


@pytest.mark.parametrize(("name", "field"), [("workers", "workers: got 2"), ("examples", "keep_examples")])
def test_what_several_ranks_cannot_do_is_refused(
    name: str, field: str, happened: tuple[Path, dict[str, Any]]
):
    codes, said = happened[1][name]
    assert codes == [FAILED, FAILED]
    assert all(text.startswith(f"WorldError: {field}") and "leave it out" in text for text in said), said
