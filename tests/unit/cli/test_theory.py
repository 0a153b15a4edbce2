"""`allrounder theory`: the table and the file."""

from __future__ import annotations

from pathlib import Path

from allrounder.recipe.recipe import Recipe
from allrounder.training.train import train
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture


def test_it_prints_every_claim_and_writes_the_numbers(allrounder: Command, tmp_path: Path):
    sets = ["epochs=2", "batch_size=64", "train_images=256", "model.width=2", "validation.images=16"]
    attack = "task.linf.objective.attack.steps=1"
    value = Recipe.load("embedded/generalist-d-nt-linf", [*sets, attack, "validation.attack.steps=1"])
    train(value, tmp_path / "run", progress=False)
    answer = allrounder("theory", str(tmp_path / "run"), "--n", "16")
    assert answer.code == 0, answer
    text = flat(answer.out)
    for part in ("16 test images", "regret of linf", "Theorem 1, 0-1 loss", "mixing gap, last", "R-bar"):
        assert part in text, text
    assert (tmp_path / "run/theory/theory.json").is_file()


def test_a_folder_that_is_no_run_is_an_error(allrounder: Command, tmp_path: Path):
    answer = allrounder("theory", str(tmp_path))
    assert answer.code == 1 and "not a run folder" in answer.err
