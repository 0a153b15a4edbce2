"""Teachers and own batches give the same bits in several processes, also after a rank was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from allrounder.training.run import Run
from tests.distributed.ranks import RankResults, run_scenarios
from tests.distributed.test_training import trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RankResults]]:
    """The folder of all scenarios, and how their ranks ended."""
    out = tmp_path_factory.mktemp("teaching")
    return out, run_scenarios("teaching_scenario", out)


def test_two_processes_give_identical_weights(scenarios: tuple[Path, dict[str, RankResults]]):
    out, results = scenarios
    assert results["swapped"][0] == [0, 0], results["swapped"]
    assert trained(out / "swapped") == trained(out / "serial")


def test_a_killed_rank_loses_no_teacher(scenarios: tuple[Path, dict[str, RankResults]]):
    out, results = scenarios
    assert results["killed"][0][1] == -9, results["killed"]
    assert trained(out / "killed") == trained(out / "serial")


def test_shared_learners_give_equal_weights_up_to_rounding(scenarios: tuple[Path, dict[str, RankResults]]):
    out, results = scenarios
    assert set(results["shared"][0]) == {0}, results["shared"]
    one, several = Run(out / "serial, double"), Run(out / "shared")
    for which in ("global", "linf", "natural", "l2"):
        expected, weights = one.weights(which)[0], several.weights(which)[0]
        for name, tensor in expected.items():
            assert torch.allclose(weights[name], tensor, rtol=1e-9, atol=1e-11), (which, name)


def test_the_weights_of_teachers_are_sent_once_for_each_refresh(
    scenarios: tuple[Path, dict[str, RankResults]],
):
    run = Run(scenarios[0] / "swapped")
    theta = sum(tensor.nbytes for tensor in run.weights()[0].values())
    sent = sum(event.get("weights", 0) for event in run.metrics() if event["event"] == "comm_bytes")
    # The initial weights; every learner's part at three validations, two exchanges, the end, and four
    # refreshes of the global weights; two teachers that are learners, four and two times.
    assert sent == theta * (1 + 3 * (3 + 2 + 1 + 4) + 4 + 2)
