"""Galleries of reports: which runs are compared, and why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.data.base import Data
from allrounder.errors import InputError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.gallery import gallery_of_runs
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.report.entry import Entry, Results, TrainingFacts
from allrounder.report.outcome import Outcome
from allrounder.rng import Rng
from allrounder.training.data import load_data
from allrounder.training.run import Run, load

STEPS = {"slow": 25, "fast": 40}


def train(recipe: Recipe, data: Data, steps: int) -> nn.Module:
    with Rng(recipe.seed).seed_global():
        model = recipe.model.build(len(data.classes), data.shape).train()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        batch = torch.arange(64) + 64 * step % 960
        loss = F.cross_entropy(model(data.train.fetch(batch)), data.train.labels[batch])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return model


def evaluated_entry(folder: Path, name: str, seed: int) -> Entry:
    """A run of which only the weights exist, and its outcome."""
    recipe = Recipe.load("embedded/nt", ["model.width=4", f"seed={seed}"])
    data = load_data(recipe)
    metadata = {"classes": list(data.classes), "shape": list(data.shape)}
    run = Run.open_or_create(folder / name, recipe, resume=False)
    run.save_weights("best", 1, {"global": weights_of(train(recipe, data, STEPS[name]))}, metadata)
    outcome = evaluate(
        load(run, "best"),
        data,
        threats=["Linf:0.02", "L2:0.3"],
        attacks="pgd-2",
        n=100,
        options=EvalOptions(check="note", check_masking=False, about={"weights": "best"}),
    )
    training = TrainingFacts(str(run.folder), "finished", recipe.dumps())
    other = replace(outcome, predicted={}, distance={}, stage={}, facts={})
    return Entry(name, {0: outcome, 1: other}, {0: training, 1: replace(training, folder="nowhere")})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two rows with two seeds each, of which only the first can be read."""
    folder = tmp_path_factory.mktemp("runs")
    return Results(tuple(evaluated_entry(folder, name, seed) for seed, name in enumerate(STEPS)))


def explain_none(results: Results, pair: tuple[str, str] | None = None) -> str:
    reasons: list[str] = []
    assert gallery_of_runs(results, pair, reasons.append) is None
    (reason,) = reasons
    return reason


def with_entries(results: Results, **changes: object) -> Results:
    return Results(tuple(replace(entry, **changes) for entry in results.entries))


def move(entry: Entry, folder: Path) -> Entry:
    return replace(
        entry, trainings={seed: replace(t, folder=str(folder)) for seed, t in entry.trainings.items()}
    )


def test_two_runs_are_compared_by_their_first_seed(results: Results):
    gallery = gallery_of_runs(results, None, pytest.fail)
    assert gallery is not None and gallery.items
    accuracies = {entry.name: entry.outcomes[0].worst("pgd-2") for entry in results.entries}
    for item in gallery.items:
        robust = item.views[1].row
        assert accuracies[robust] == max(accuracies.values()), "the second has the best worst case"
        assert {view.row for view in item.views} == {"slow", "fast"}
        assert item.attack == "pgd-20" and item.threat in ("Linf:0.02", "L2:0.3")


def test_rows_can_be_chosen_by_name(results: Results):
    for pair in (("slow", "fast"), ("fast", "slow")):
        gallery = gallery_of_runs(results, pair, pytest.fail)
        assert gallery is not None
        assert all(tuple(view.row for view in item.views) == pair for item in gallery.items)
    with pytest.raises(InputError, match="there is no row 'fats', expected two of slow, fast; did you mean"):
        gallery_of_runs(results, ("slow", "fats"))
    with pytest.raises(InputError, match="got 'slow' twice"):
        gallery_of_runs(results, ("slow", "slow"))


def test_the_reason_is_given_if_there_is_no_gallery(results: Results, tmp_path: Path):
    slow, fast = results.entries
    assert "no two runs" in explain_none(Results(()))
    assert "no two runs" in explain_none(Results((slow,)))
    assert "no two runs" in explain_none(with_entries(results, trainings={}))
    bare = Results((replace(slow, trainings={}), fast))
    assert "slow has no run folder with an evaluation" in explain_none(bare, ("slow", "fast"))
    assert str(tmp_path) in explain_none(Results((slow, move(fast, tmp_path))))


def test_rows_on_other_images_are_not_compared(results: Results):
    slow, fast = results.entries

    def change(outcome: Outcome, **facts: str) -> Outcome:
        return replace(outcome, facts={**outcome.facts, **facts})

    for key in ("rows", "data"):
        other = replace(fast, outcomes={0: change(fast.outcomes[0], **{key: "0"})})
        assert "no two runs" in explain_none(Results((slow, other)))
    both = [replace(entry, outcomes={0: change(entry.outcomes[0], rows="0")}) for entry in (slow, fast)]
    assert "no such selection of images" in explain_none(Results(tuple(both)))


def test_equal_networks_have_no_gallery(results: Results):
    slow, _ = results.entries
    same = Results((slow, replace(slow, name="again")))
    assert "slow and again differ on no image" in explain_none(same, ("slow", "again"))
    natural = slow.outcomes[0].predicted["natural"]
    only = Outcome(slow.outcomes[0].label, {"natural": np.array(natural)}, slow.outcomes[0].facts)
    rows = (replace(slow, outcomes={0: only}), replace(slow, name="again", outcomes={0: only}))
    assert "no attack was evaluated" in explain_none(Results(rows), ("slow", "again"))


def test_rows_under_other_threats_are_not_compared(results: Results):
    slow, fast = results.entries
    predicted = dict(fast.outcomes[0].predicted)
    del predicted["pgd-2@L2:0.3"]
    fewer = replace(fast.outcomes[0], predicted=predicted, distance={}, stage={})
    assert "no two runs" in explain_none(Results((slow, replace(fast, outcomes={0: fewer}))))
