"""What the guide shows is run, page by page, the blocks of a page one after the other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.recipe.recipe import Recipe
from allrounder.training.trainer import train
from tests.support.networks import blobs
from tests.support.paths import PROJECT

GUIDE = PROJECT / "docs" / "guide"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("adaptive.md", 5),
        ("data.md", 3),
        ("reproduce.md", 1),
        pytest.param("evaluation.md", 2, marks=pytest.mark.slow),
    ],
)
def test_the_code_of_the_guide_runs(page: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / page).read_text(encoding="utf-8")
    found, names = list(BLOCK.finditer(text)), {"__name__": page}
    assert len(found) == blocks
    for block in found:
        # Empty lines in front, so that an error points at the line of the page.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, str(GUIDE / page), "exec"), names)


def test_the_recipes_of_the_guide_load_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / "recipes.md").read_text(encoding="utf-8")
    short, complete = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    Path("short.toml").write_text(short, encoding="utf-8")
    parent = Recipe.load("embedded/generalist-t", ["task.linf.objective.attack.steps=7"])
    assert Recipe.load("short.toml") == replace(parent, name="short", about="")
    Path("complete.toml").write_text(complete, encoding="utf-8")
    recipe = Recipe.load("complete.toml")
    assert Recipe.loads(recipe.dumps()) == recipe and recipe.validation.num_held_out(600) == 60
    sets = ["epochs=1", "model=small-cnn", "model.width=2", "task.linf.objective.attack.steps=1"]
    run = train(Recipe.load("complete.toml", sets), "run", data=blobs(train=20, test=6))
    steps = [(event["learner"], event["t"]) for event in run.metrics() if event["event"] == "epoch"]
    assert steps == [("linf", 1), ("natural", 1)]


def test_the_architecture_guide_names_existing_files():
    text = (GUIDE / "architecture.md").read_text(encoding="utf-8")
    repository = GUIDE.parents[1]
    files = [path.relative_to(repository).as_posix() for path in repository.glob("[st]*/**/*.py")]
    named = set(re.findall(r"[a-z_][a-z_/]*\.py", text))
    assert len(named) > 40
    assert not [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]


def test_the_guide_to_limits_names_existing_constants():
    text = (GUIDE / "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*? \(((?:`\w+`, )+)`([\w/]+\.py)`\)", text, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!what |---)", text, re.MULTILINE)) > 20
    for names, file in rows:
        source = (PROJECT / "src" / "allrounder" / file).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(def )?{name}\b|, {name} = ", source, re.MULTILINE), f"{name} in {file}"
