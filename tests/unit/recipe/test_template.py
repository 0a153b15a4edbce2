"""New recipe files: each equals the recipe that it extends, also where its comments become values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.recipe.template import recipe_template
from tests.support.offenders import check_each

HEAD = 2
"""Lines of a new file that are sentences."""


def uncomment(text: str) -> str:
    """Remove the # in front of every key and table."""
    lines = text.splitlines()[HEAD:]
    return "\n".join(re.sub(r"^# ", "", line) for line in lines)


def test_a_new_recipe_equals_the_one_that_it_extends(tmp_path: Path):
    file = tmp_path / "mine.toml"

    def check(name: str) -> None:
        text, parent = recipe_template(name, file), replace(Recipe.load(name), name="mine")
        file.write_text(text, encoding="utf-8")
        assert Recipe.load(file) == parent
        file.write_text(uncomment(text), encoding="utf-8")
        assert Recipe.load(file) == parent

    check_each(list(shipped_recipes())[::7], check)


def test_the_comments_of_a_new_recipe_name_the_useful_keys(tmp_path: Path):
    text = uncomment(recipe_template("embedded/generalist-t", tmp_path / "mine.toml"))
    for key in ("epochs", "seed", "data", "model", "images", "threat", "steps", "decay", "exchange"):
        assert re.search(rf"\b{key} += ", text), key
    assert max(map(len, text.splitlines())) < 140


def test_a_new_recipe_may_extend_a_file_of_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("theirs", "mine"):
        Path(folder).mkdir()
    base = Path("theirs/base.toml")
    base.write_text('extends = "embedded/nt"\nmodel = "resnet18"\nepochs = 3\n', encoding="utf-8")
    file = Path("mine/own.toml")
    file.write_text(recipe_template(str(base), file), encoding="utf-8")
    assert 'extends = "../theirs/base.toml"' in file.read_text(encoding="utf-8")
    assert Recipe.load(file) == replace(Recipe.load(base), name="own")
