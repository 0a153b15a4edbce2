"""The best weights are those with the largest natural plus mean robust accuracy on images held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from allrounder.errors import RecipeError
from allrounder.evaluation.evaluate import evaluate
from allrounder.evaluation.probes import Probe
from allrounder.nn.state import clone, weights_of
from allrounder.rng import Rng
from allrounder.training.data import TrainingData, train_val_split
from allrounder.training.model_selection import ModelSelector
from allrounder.training.run import Run, load
from tests.support.networks import Tiny, blobs, same, tiny
from tests.support.trainings import PAIR, SOLO, go, recipe

TWO = ('threats = ["Linf:0.1"]', 'threats = ["Linf:0.1", "L2:0.5"]')


def selector(*sets: tuple[str, str]) -> ModelSelector:
    value = recipe(SOLO, *sets)
    with Rng(0).seed_global():
        return ModelSelector(value, TrainingData.split(value, blobs(48)), Tiny())


def test_the_score_is_natural_plus_mean_robust_accuracy():
    selection = selector(TWO)
    with Rng(7).seed_global():
        model = Tiny()
    facts = selection.measure(weights_of(model), 3)
    assert selection.split is not None
    outcome = evaluate(model, selection.split, probes=selection.probes, seed=5)
    linf, l2 = (outcome.accuracy("validation", threat) for threat in ("Linf:0.1", "L2:0.5"))
    assert facts["robust"] == {"Linf:0.1": linf, "L2:0.5": l2}
    assert facts["natural"] == outcome.accuracy()
    assert facts["score"] == pytest.approx(outcome.accuracy() + (linf + l2) / 2, abs=1e-12)


def test_without_threats_the_score_is_natural_accuracy():
    facts = selector((TWO[0], "threats = []")).measure(weights_of(Tiny()), 3)
    assert facts["score"] == facts["natural"] and facts["robust"] == {}


def test_the_first_of_the_largest_scores_is_the_best(monkeypatch: pytest.MonkeyPatch):
    selection = selector()
    scores = iter([0.2, 0.5, 0.5, 0.3, 0.6])
    monkeypatch.setattr(
        ModelSelector,
        "_accuracies",
        lambda self, split, probes: {"natural": next(scores), "robust": {"Linf:0.1": 0.0}},
    )
    selection.train_slice = None
    result = [selection.measure(weights_of(selection.scratch_model), t)["best"] for t in (3, 6, 9, 12, 15)]
    assert result == [True, True, False, False, True]
    assert selection.best == {"t": 15, "score": 0.6, "selected_on": "validation"}


@pytest.mark.parametrize("text", [SOLO, PAIR])
def test_the_best_weights_of_a_run_are_the_argmax_of_its_log(text: str, tmp_path: Path):
    run = go(recipe(text), tmp_path / "run")
    events = [event for event in run.metrics() if event["event"] == "validation"]
    assert [event["t"] for event in events] == [3, 6, 9]
    best = max(events, key=lambda event: event["score"])
    facts = run.weights("best")[1]
    assert (facts["t"], facts["score"], facts["selected_on"]) == (best["t"], best["score"], "validation")
    _, held_out = train_val_split(run.recipe, blobs(48))
    assert held_out is not None
    rule = run.recipe.validation
    probes = [Probe("validation", rule.attack, threat) for threat in run.recipe.selection_threats]
    outcome = evaluate(load(run.folder, "best", model=tiny), held_out, probes=probes, seed=5)
    assert outcome.accuracy() + outcome.mean("validation") == pytest.approx(best["score"], abs=1e-12)
    assert [path.name for path in (run.folder / "weights").glob("best-*")] == [f"best-{best['t']:08d}"]


def test_best_weights_hold_every_learner_at_that_moment(tmp_path: Path):
    run = go(recipe(PAIR, ("every = 1\nthreats", "every = '100%'\nthreats")), tmp_path / "run")
    assert run.weights("best")[1]["t"] == 9
    for name in run.recipe.names:
        assert same(run.weights(f"{name}@best")[0], run.weights(name)[0])


@pytest.mark.parametrize(
    ("every", "due"),
    [("1", [3, 6, 9]), ("0.7", [2, 4, 6, 8, 9]), ("'40%'", [4, 8, 9]), ("0.01", [*range(1, 10)])],
)
def test_the_last_step_is_always_measured(every: str, due: list[int]):
    selection = selector(("every = 1\nthreats", f"every = {every}\nthreats"))
    assert [t for t in range(1, 10) if selection.is_due(t)] == due


def test_the_training_slice_does_not_affect_the_selection(tmp_path: Path):
    selection = selector()
    plain = selector(("train_images = 6", "train_images = 0"))
    theta = clone(weights_of(Tiny()))
    with_slice, without = selection.measure(theta, 3), plain.measure(theta, 3)
    train = with_slice.pop("train")
    assert with_slice == without
    slice_: Any = selection.train_slice
    held: Any = selection.split
    assert len(slice_) == 6 and plain.train_slice is None
    trained = set(slice_.split.index[slice_.index].tolist())
    assert not trained & set(held.index.tolist())
    assert train.keys() == {"natural", "robust"}


def test_images_held_out_are_not_trained_on_and_are_the_same_in_every_session():
    value = recipe(SOLO)
    parts: list[Any] = [train_val_split(value, blobs(48)) for _ in range(2)]
    for one, two in zip(*parts, strict=True):
        assert torch.equal(one.index, two.index)
    train, held = parts[0]
    assert sorted([*train.index.tolist(), *held.index.tolist()]) == list(range(48))
    assert torch.equal(held.labels.bincount(), torch.tensor([4, 4, 4]))


def test_selecting_on_the_test_set_holds_out_nothing():
    data = blobs(48)
    value = recipe(SOLO, ("[validation]", "[validation]\non = 'test'"))
    assert train_val_split(value, data) == (data.train, None)
    selection = ModelSelector(value, TrainingData.split(value, data), Tiny())
    assert selection.split is data.test
    assert selection.measure(weights_of(Tiny()), 3)["selected_on"] == "test"


def test_without_validation_images_nothing_is_measured():
    selection = selector(("images = 12", "images = 0"))
    assert not any(selection.is_due(t) for t in range(1, 10))


@pytest.mark.parametrize("images", [48, 500])
def test_holding_out_all_images_raises_an_error_with_the_field(images: int):
    with pytest.raises(RecipeError, match=rf"validation\.images: .*got {images} of 48 training images"):
        train_val_split(recipe(SOLO, ("images = 12", f"images = {images}")), blobs(48))


def test_measuring_does_not_change_the_given_weights():
    selection = selector()
    theta = clone(weights_of(Tiny()))
    before = clone(theta)
    selection.measure(theta, 3)
    assert same(theta, before)
    assert same(dict(weights_of(selection.scratch_model)), before)


def test_selection_on_the_test_set_is_in_every_manifest(tmp_path: Path):
    value = recipe(SOLO, ("[validation]", "[validation]\non = 'test'"), ("epochs = 3", "epochs = 1"))
    run = Run(go(value, tmp_path / "run").folder)
    assert {run.weights(name)[1]["selected_on"] for name in ("global", "best", "natural")} == {"test"}
