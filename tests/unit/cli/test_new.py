"""The verb that writes a new recipe file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.recipe.recipe import Recipe
from tests.unit.cli.test_main import Command, allrounder

__all__ = ["allrounder"]  # fixture


def test_new_writes_a_recipe_that_equals_its_parent(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    answer = allrounder("new", "mine", "--from", "embedded/generalist-t")
    assert answer.code == 0
    advice = "edit it, then run: allrounder train mine.toml"
    assert answer.out == f"wrote mine.toml, which extends embedded/generalist-t; {advice}\n"
    assert Recipe.load("mine.toml") == replace(Recipe.load("embedded/generalist-t"), name="mine")


def test_new_overwrites_nothing(allrounder: Command, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("precious", encoding="utf-8")
    answer = allrounder("new", str(file), "--from", "embedded/nt")
    assert (
        answer.code == 2
        and answer.err == f"{file}: exists already; choose another name, or delete it first\n"
    )
    assert file.read_text(encoding="utf-8") == "precious"


def test_new_refuses_an_unknown_parent_and_a_missing_folder(allrounder: Command, tmp_path: Path):
    answer = allrounder("new", str(tmp_path / "mine"), "--from", "embedded/generalst-t")
    assert answer.code == 2 and 'did you mean "embedded/generalist-t"?' in answer.err
    answer = allrounder("new", str(tmp_path / "nowhere" / "mine"), "--from", "embedded/nt")
    assert answer.code == 2 and "mine.toml: cannot be written: " in answer.err
    assert list(tmp_path.iterdir()) == []
