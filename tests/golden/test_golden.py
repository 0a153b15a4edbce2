"""Results stay what they were when they were recorded, bit for bit on machines with the same arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.cases import CASES, EQUAL
from tests.golden.record import choose_record, find_family, read_records
from tests.golden.results import (
    Result,
    describe_arithmetic,
    find_exact_difference,
    find_rough_difference,
    make_result,
)

RECORDS = read_records()
MAX_MISSING = 5
SMALL_FAMILIES = ("processes", "recipes")
"""The default tests run all cases of these families and a third of the others, the slow tests the rest."""
ADVICE = "if that is meant: python -m tests.golden.record"
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1800)  # the first test waits for all chosen cases


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all cases that are tested, from a process without run-time checks of types."""
    calls: list[Any] = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {call.params.get("name") for call in calls if call is not None}
    names = [name for name in CASES if name in chosen]
    out = tmp_path_factory.mktemp("golden") / "results.json"
    words = [sys.executable, "-m", "tests.golden.record", "--out", str(out)]
    words += [word for name in names if len(names) < len(CASES) for word in ("--only", name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text(encoding="ascii"))


def is_slow(name: str) -> bool:
    """Whether a case runs with the slow tests only; that depends on its name alone."""
    return find_family(name) not in SMALL_FAMILIES and zlib.crc32(name.encode()) % 3 > 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * is_slow(name)) for name in CASES]
)
def test_a_case_gives_what_was_recorded(name: str, run: dict[str, Any]):
    record = choose_record(RECORDS, name, run["arithmetic"])
    expected: Result = record["cases"][name]
    found: Result = run["cases"][name]
    assert not found["digest"].startswith("failed: "), found["digest"]
    if record["arithmetic"] == run["arithmetic"]:
        difference = find_exact_difference(expected, found)
        assert difference is None, f"{name}: {difference}; {ADVICE}"
        return
    difference = find_rough_difference(expected, found)
    assert difference is None, f"{name}: {difference}; {ADVICE}"
    pytest.skip("recorded with another arithmetic: losses agree roughly, bits were not compared")


def test_every_record_has_its_case_and_the_other_way_round():
    recorded = [{name for one in folder.values() for name in one["cases"]} for folder in RECORDS.values()]
    assert set.union(*recorded) == set(CASES)
    # Cases that a machine could not record again are missing in its folder; there must not be many.
    assert all(len(set(CASES) - names) <= MAX_MISSING for names in recorded)


@pytest.mark.parametrize("folder", RECORDS)
@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_processes_and_interruptions_change_no_bit(folder: str, one: str, other: str):
    results = [RECORDS[folder][find_family(name)]["cases"][name] for name in (one, other)]
    assert find_exact_difference(*results) is None


def test_a_comparison_sees_the_last_bit_and_a_rough_one_does_not():
    x = torch.ones(3)
    one, same = make_result({"x": x}, [0.1]), make_result({"x": x.clone()}, [0.1])
    moved, other = make_result({"x": x}, [0.1 + 2e-17]), make_result({"x": x.nextafter(2 * x)}, [0.1])
    assert find_exact_difference(one, same) is None
    assert "loss 0" in (find_exact_difference(one, moved) or "")
    assert "digest" in (find_exact_difference(one, other) or "")
    assert find_rough_difference(one, moved) is None is find_rough_difference(one, other)
    assert find_rough_difference(one, make_result({}, [0.3])) is not None
    assert find_exact_difference(one, make_result({"x": x})) is not None


def test_the_arithmetic_is_described_the_same_every_time():
    assert describe_arithmetic() == describe_arithmetic()
