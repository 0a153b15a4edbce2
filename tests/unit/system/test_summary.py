"""What a terminal and a notebook show of a value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from allrounder.data.base import Data, Subset
from allrounder.data.inputs.map_dataset import MapDatasetSplit
from allrounder.data.splits import Relabelled
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.system.summary import Summary, list_names
from allrounder.training.run import Run
from tests.support.networks import blobs
from tests.support.trainings import EndsAfter, go, recipe


def test_a_summary_is_aligned_text_and_an_escaped_table():
    summary = Summary("A <b>", [("a", "1 & 2"), ("long", "<script>")])
    assert summary.to_text() == "A <b>\n  a     1 & 2\n  long  <script>"
    assert summary.to_html() == (
        "<table><caption>A &lt;b&gt;</caption><tr><th>a</th><td>1 &amp; 2</td></tr>"
        "<tr><th>long</th><td>&lt;script&gt;</td></tr></table>"
    )


def test_long_lists_are_cut():
    assert list_names("abc") == "a, b, c"
    assert list_names([str(number) for number in range(100)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."


def test_data_shows_its_splits_and_classes():
    data = blobs(48)
    assert repr(data) == (
        "Data blobs\n  train    48 images 1x8x8\n  test     30 images 1x8x8\n  classes  3: 0, 1, 2"
    )
    only = Data.from_test_arrays("<i>", torch.rand(4, 1, 8, 8), torch.arange(4) % 2)
    assert "train" not in repr(replace(only)) and "&lt;i&gt;" in only._repr_html_()


def test_splits_show_their_number_and_shape():
    split = blobs(48).train
    assert repr(split) == "TensorSplit(48 images 1x8x8, 3 classes)"
    assert repr(Subset(split, torch.arange(5))) == f"Subset(5 images of {split})"
    assert repr(Relabelled(split, split.labels)) == f"Relabelled({split})"
    pairs = [(np.zeros((1, 8, 8), np.uint8), 0)] * 3
    assert repr(MapDatasetSplit(pairs)) == "MapDatasetSplit(3 images 1x8x8 of a list)"


def test_a_recipe_shows_tasks_threats_and_epochs():
    assert repr(Recipe.load("embedded/generalist-t")).splitlines() == [
        "Recipe embedded/generalist-t",
        "  data          embedded",
        "  model         small-cnn",
        "  epochs        12",
        "  task linf     adversarial under Linf:0.1",
        "  task natural  natural",
        "  task l2       adversarial under L2:1.5",
    ]
    assert "pipeline" in repr(Recipe.load("embedded/soup"))


def test_a_run_shows_its_folder_its_state_and_its_best_validation(tmp_path: Path):
    with pytest.raises(KeyError):
        go(recipe(), tmp_path / "run", progress=EndsAfter(5))
    assert repr(Run(tmp_path / "run")).startswith(
        f"Run {tmp_path / 'run'}\n  state   stopped after step 4\n  recipe  "
    )
    run = go(recipe(), tmp_path / "run", resume=True)
    title, state, _, best = repr(run).splitlines()
    assert title == f"Run {tmp_path / 'run'}" and state == "  state   finished"
    assert best.startswith("  best    epoch ") and "natural " in best and "Linf:0.1 " in best
    assert "<td>finished</td>" in run._repr_html_()


def test_an_outcome_shows_accuracies_with_intervals():
    label = np.array([0, 1, 1, 0])
    outcome = Outcome(label, {"natural": label, "pgd@Linf:8/255": np.array([0, 1, 0, 1])})
    assert repr(outcome).splitlines() == [
        "Outcome of 4 images",
        "  natural         100.00 (51.01-100.00)",
        "  pgd@Linf:8/255  50.00 (15.00-85.00)",
    ]
    assert "<th>natural</th><td>100.00 (51.01-100.00)</td>" in outcome._repr_html_()
    assert str(outcome) != repr(outcome)
