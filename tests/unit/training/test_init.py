"""Where learners start: fresh weights from the seed, another run's, or an average of several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from allrounder.errors import RecipeError, RunError
from allrounder.nn.state import average_weights, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run
from allrounder.training.setup import build_initial_model
from allrounder.types import Weights
from tests.support.networks import Tiny, blobs, same, tiny
from tests.support.trainings import SOLO, go, recipe

SHORT = ("epochs = 3", "epochs = 1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two runs of one network that differ in their seed, and so in their counters' company."""
    out = tmp_path_factory.mktemp("runs")
    return [go(recipe(SOLO, SHORT, ("seed = 5", f"seed = {seed}")), out / str(seed)) for seed in (1, 2)]


def started(init: str) -> Weights:
    return dict(weights_of(build_initial_model(Recipe.loads(f"init = {init}\n{SOLO}"), tiny, blobs(48))))


def test_initial_weights_depend_on_the_seed_only():
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one = started("{ kind = 'random' }")
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(one, started("{ kind = 'random' }"))
    other = build_initial_model(recipe(SOLO, ("seed = 5", "seed = 6")), tiny, blobs(48))
    assert not same(one, dict(weights_of(other)))


@pytest.mark.parametrize("which", ["global", "best", "natural"])
def test_a_training_can_start_from_another_run(which: str, runs: list[Run]):
    result = started(f"{{ kind = 'run', run = '{runs[0].folder}', which = '{which}' }}")
    assert same(result, runs[0].weights(which)[0])


def test_a_soup_is_the_average_of_its_runs(runs: list[Run]):
    result = started(f"{{ kind = 'soup', runs = ['{runs[0].folder}', '{runs[1].folder}'] }}")
    one, two = (run.weights()[0] for run in runs)
    for name, tensor in result.items():
        expected = (one[name] + two[name]) / 2 if tensor.is_floating_point() else two[name]
        assert torch.allclose(tensor, expected, rtol=0, atol=1e-7), name
    assert result["bn.num_batches_tracked"] == 3


def test_a_run_that_is_named_twice_counts_twice(runs: list[Run]):
    a, b = (str(run.folder) for run in runs)
    result = started(f"{{ kind = 'soup', runs = ['{a}', '{b}', '{a}'] }}")
    one, two = (run.weights()[0] for run in runs)
    assert torch.allclose(result["conv.weight"], (2 * one["conv.weight"] + two["conv.weight"]) / 3, atol=1e-7)


def test_a_soup_of_one_run_equals_that_run(runs: list[Run]):
    assert same(started(f"{{ kind = 'soup', runs = ['{runs[0].folder}'] }}"), runs[0].weights()[0])


def test_a_long_soup_is_a_plain_mean():
    members = [{"w": torch.randn(5, dtype=torch.float64)} for _ in range(7)]
    mean = torch.stack([member["w"] for member in members]).mean(0)
    assert torch.allclose(average_weights(members)["w"], mean, rtol=0, atol=1e-12)


def test_fine_tuning_starts_from_the_weights_of_the_run(runs: list[Run], tmp_path: Path):
    value = recipe(
        f"init = {{ kind = 'run', run = '{runs[0].folder}' }}\n{SOLO}",
        SHORT,
        ("to = [0.1, 0.02]", "to = [0.0, 0.0]"),
    )
    tuned, start = go(value, tmp_path / "run").weights()[0], runs[0].weights()[0]
    assert torch.equal(tuned["conv.weight"], start["conv.weight"]), "with a learning rate of 0"
    assert tuned["bn.num_batches_tracked"] == 6


def wide() -> Tiny:
    return Tiny(width=5)


def test_another_network_is_an_error_that_names_the_run(runs: list[Run], tmp_path: Path):
    other = go(recipe(SOLO, SHORT), tmp_path / "wide", model=wide)
    for init in (
        f"{{ kind = 'run', run = '{other.folder}' }}",
        f"{{ kind = 'soup', runs = ['{runs[0].folder}', '{other.folder}'] }}",
    ):
        with pytest.raises(RunError, match=f"{other.folder}: holds another network, bn.bias does not fit"):
            started(init)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ kind = 'run', run = 'nowhere' }", "nowhere: no such folder"),
        ("{ kind = 'soup', runs = ['nowhere'] }", "nowhere: no such folder"),
        ("{ kind = 'run', run = '%s', which = 'l2' }", 'has no weights "l2"'),
    ],
)
def test_missing_weights_raise(text: str, message: str, runs: list[Run]):
    with pytest.raises(RunError, match=message):
        started(text.replace("%s", str(runs[0].folder)))


def test_a_network_from_python_must_be_passed():
    with pytest.raises(RecipeError, match="pass it again"):
        build_initial_model(recipe(SOLO), None, blobs(48))
