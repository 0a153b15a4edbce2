"""The theory of a run, from its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from allrounder.errors import RunError
from allrounder.experiments.theory import Theory, list_claims, measure_theory, write_theory
from allrounder.experiments.theory.bound import Theorem1, compute_theorem1
from allrounder.experiments.theory.mixed_run import MixedRun
from allrounder.system.checked_files import read_json
from allrounder.system.progress import ProgressEvent
from allrounder.training.run import Run
from tests.support.networks import blobs, tiny
from tests.support.trainings import HEAD, LINF, PAIR, SOLO, go, recipe


def measure(run: Run, **more: Any) -> Theory:
    return measure_theory(run, n=12, model=tiny, data=blobs(48), **more)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(recipe(PAIR), tmp_path_factory.mktemp("runs") / "pair")


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(recipe(SOLO, ("epochs = 3", "epochs = 6")), tmp_path_factory.mktemp("runs") / "solo")


@pytest.fixture(scope="module")
def theory(pair: Run, solo: Run) -> Theory:
    return measure(pair, solo=[solo.folder])


def test_the_regret_uses_the_log_and_the_infimum_of_the_solo_run(pair: Run, solo: Run, theory: Theory):
    assert [regret.name for regret in theory.regret.learners] == ["linf", "natural"] and theory.steps == 9
    best = min(event["loss"] for event in solo.metrics() if event["event"] == "epoch")
    own = min(
        event["loss"]
        for event in pair.metrics()
        if event["event"] == "epoch" and event["learner"] == "natural"
    )
    assert theory.regret.learners[1].infimum == min(best, own)
    assert theory.solo == {"natural": str(solo.folder)}
    assert all(regret.total >= 0 for regret in theory.regret.learners)


def test_gradients_are_measured_at_all_weights_that_exist(theory: Theory):
    assert {"start", "learner", "last"} <= theory.gradients["linf"].keys()
    assert "solo" in theory.gradients["natural"] and "solo" not in theory.gradients["linf"]


def test_every_gap_obeys_equation_36_with_the_estimated_curvature(theory: Theory):
    assert "last" in theory.gaps
    for gap in theory.gaps.values():
        assert 0 < gap.mean <= gap.largest <= gap.bound
        assert gap.loss_slope <= math.sqrt(2)


def test_the_logged_exchanges_are_part_of_it(theory: Theory):
    assert [event["t"] for event in theory.exchanges] == [3, 6]


def test_every_claim_has_a_verdict_and_the_file_holds_all_numbers(theory: Theory, tmp_path: Path):
    claims = list_claims(theory)
    assert len({claim.quantity for claim in claims}) == len(claims) > 12
    content = read_json(write_theory(theory, tmp_path / "theory"), "", 1)
    assert [claim["quantity"] for claim in content["claims"]] == [claim.quantity for claim in claims]
    assert content["theorem1"]["steps"] == 9 and content["derived"]["regret_total"] == theory.regret.total
    assert "NaN" not in (tmp_path / "theory/theory.json").read_text()


def test_the_same_run_gives_the_same_numbers_and_progress_reaches_its_end(
    pair: Run, solo: Run, theory: Theory
):
    events: list[ProgressEvent] = []
    assert measure(pair, solo=[solo.folder], progress=events.append) == theory
    assert [event.done for event in events] == list(range(1, events[0].total + 1))


def test_a_learner_that_is_taught_has_gradients_of_its_whole_loss(tmp_path: Path):
    base = 'objective = { kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }'
    inner = base.removeprefix("objective = ")
    lesson = 'natural = { teacher = "natural" }, adversarial = { teacher = "global" }'
    taught = f'objective = {{ kind = "taught", base = {inner}, {lesson}, refresh = 1 }}'
    run = go(recipe(PAIR, (base, taught)), tmp_path / "taught")
    found = measure(run).gradients["linf"]["learner"]
    without = measure(go(recipe(PAIR), tmp_path / "plain")).gradients["linf"]["learner"]
    assert math.isfinite(found.inner) and found != without


def test_the_gap_has_the_shares_that_the_run_chose(tmp_path: Path):
    rule = 'rule = { kind = "chosen", grid = 3 }'
    shares = 'decay = 0.8\nshares = { lead = "linf", curve = 0.6 }'
    run = go(recipe(PAIR, (shares, rule)), tmp_path / "chosen")
    events = [event for event in run.metrics() if event["event"] == "exchange"]
    mixed_run = MixedRun.load(run, 12, tiny, blobs(48))
    assert mixed_run.shares("last") == events[-1]["shares"]
    assert mixed_run.shares("last") != {"linf": 0.5, "natural": 0.5}, (
        "the test needs other shares than equal ones"
    )


def test_a_run_of_one_learner_has_no_mix_to_measure(solo: Run):
    with pytest.raises(RunError, match="has one learner, expected several"):
        measure(solo)


def test_a_solo_run_must_train_one_of_the_tasks(pair: Run, tmp_path: Path):
    other = go(recipe(HEAD + LINF, ("steps = 2 } }", "steps = 3 } }")), tmp_path / "other")
    with pytest.raises(RunError, match=r"--solo .*other: trains linf, expected one learner with"):
        measure(pair, solo=[other.folder])
    with pytest.raises(RunError, match=r"--solo .*pair: trains linf, natural"):
        measure(pair, solo=[pair.folder])


def test_theorem_1_adds_comparator_regret_and_slack():
    found = compute_theorem1({"a": 0.5, "b": 0.25}, {"a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.5}}, 0.125, 800)
    assert isinstance(found, Theorem1) and (found.measured, found.comparator) == (0.375, 0.5)
    assert found.slack == pytest.approx(2 * math.sqrt(2 / 800 * math.log(20)))
    assert found.bound == pytest.approx(0.625 + found.slack)
