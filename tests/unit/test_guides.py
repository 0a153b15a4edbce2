"""What the documents show is run, page by page, the blocks of a page one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.data import DATASETS
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.models import MODELS
from allrounder.nn.mixing import MIXES
from allrounder.objectives import OBJECTIVES
from allrounder.recipe.recipe import Recipe
from allrounder.training.train import train
from tests.support.documents import DOCUMENTS, find_blocks, name_of, run_blocks
from tests.support.formats import cifar10_binary, random_images, shared_data_folder
from tests.support.networks import blobs
from tests.support.packed import read_shared
from tests.support.paths import PROJECT

GUIDE = PROJECT / "docs" / "guide"
TABLES: list[dict[str, Any]] = [ATTACKS, DATASETS, MIXES, MODELS, OBJECTIVES]
ELSEWHERE = {"docs/guide/ecosystem.md": 4, "docs/guide/report.md": 2}
"""Pages whose Python blocks test_examples.py and cli/test_figure.py run, and their numbers."""
PAGES = {
    "README.md": 1,
    "docs/faq.md": 10,
    "docs/guide/adaptive.md": 5,
    "docs/guide/concepts.md": 1,
    "docs/guide/data.md": 3,
    "docs/guide/dial.md": 1,
    "docs/guide/evaluation.md": 3,
    "docs/guide/export.md": 1,
    "docs/guide/extend.md": 6,
    "docs/guide/reliability.md": 1,
    "docs/guide/reproduce.md": 1,
    "docs/guide/tour.md": 1,
}
"""Pages with Python blocks that are run here, and the number of blocks."""
SLOW = {"README.md", "docs/faq.md", "docs/guide/dial.md", "docs/guide/evaluation.md"}
REPLACED = {
    "README.md": [('"epochs=4"', '"epochs=1", "train_images=400", "model.width=8"'), ("n=64", "n=20")],
    "docs/guide/concepts.md": [('"epochs=30"', '"epochs=1"')],
}
"""Settings of a page that are too long for a test, and shorter ones."""


def names_for(page: str) -> dict[str, object]:
    """What a page leaves to its reader."""
    if page == "docs/guide/concepts.md":
        x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
        x[y == 1] /= 2
        arrays = {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}
        return {**arrays, "MyNetwork": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2))}
    if page == "docs/guide/tour.md":
        settings = ["epochs=1", "train_images=100", "model.width=4", "validation.images=50"]
        train("embedded/generalist-d-nt-linf", "runs/generalist", overrides=settings, progress=False)
    return {}


@pytest.fixture
def tables() -> Generator[None]:
    """Restores the tables that a page adds classes to."""
    contents = [dict(table) for table in TABLES]
    yield
    for table, content in zip(TABLES, contents, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES]
)
@pytest.mark.usefixtures("tables")
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page, names_for(page), REPLACED.get(page, []))


def test_every_python_block_is_run_by_a_test():
    counts = {name_of(page): len(find_blocks(page.read_text("utf-8"), "python")) for page in DOCUMENTS}
    assert {page: count for page, count in counts.items() if count} == {**PAGES, **ELSEWHERE}


def test_the_recipes_of_the_guide_load_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / "recipes.md").read_text(encoding="utf-8")
    short, complete = find_blocks(text, "toml")
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


def test_the_task_of_the_page_on_extensions_is_one_more_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (recipe,) = find_blocks((GUIDE / "extend.md").read_text(encoding="utf-8"), "toml")
    Path("four.toml").write_text(recipe, encoding="utf-8")
    assert Recipe.load("four.toml").names == ("linf", "natural", "l2", "l1")


def shell_commands(page: str) -> list[str]:
    """The commands in the shell blocks of a guide, without comments."""
    blocks = find_blocks((GUIDE / page).read_text(encoding="utf-8"), "sh")
    return [line.partition("  #")[0] for block in blocks for line in block.splitlines()]


def run_command(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "allrounder"
    command = [sys.executable, "-m", "allrounder", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"


@pytest.mark.slow
def test_the_example_of_the_page_on_mixing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / "mixing.md").read_text(encoding="utf-8")
    _, example = find_blocks(text, "toml")
    Path("mine.toml").write_text(example, encoding="utf-8")
    commands = shell_commands("mixing.md")
    assert len(commands) == 3
    for line in commands:
        run_command(line)


def test_the_page_on_mixing_has_every_rule():
    text = (GUIDE / "mixing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\|.*\| `(embedded/[\w-]+)` \|$", text, re.MULTILINE)
    rules = {kind: type(Recipe.load(name).effective_mix.rule) for kind, name in rows}
    assert rules == MIXES
    forms, _ = find_blocks(text, "toml")
    base = Recipe.load("embedded/generalist-t")
    assert base.mix is not None
    for line in forms.splitlines():
        assert replace(base, mix=replace(base.mix, shares=tomllib.loads(line)["shares"])).mix is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_cifar10_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared = shared_data_folder(PROJECT)
    if shared is None:
        pytest.skip("needs CIFAR-10, which is beside the project on development machines only")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    names = [*(f"cifar10_train_{number}.npz" for number in range(1, 6)), "cifar10_test.npz"]
    splits = [read_shared(shared / name).test for name in names]
    arrays = [
        ((s.fetch(torch.arange(len(s))) * 255).round().byte().numpy(), s.labels.numpy()) for s in splits
    ]
    train = np.concatenate([x for x, _ in arrays[:5]]), np.concatenate([y for _, y in arrays[:5]])
    for name, content in cifar10_binary(train, arrays[5]).items():
        (tmp_path / "given" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "given" / name).write_bytes(content)
    commands = shell_commands("cifar10.md")
    assert len(commands) == 13
    for line in commands:
        run_command(line.replace("FOLDER", str(tmp_path / "given")))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_tour_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    commands = shell_commands("tour.md")
    assert len(commands) == 12
    for line in commands:
        run_command(line)
    assert Path("report.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_on_the_dial_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    commands = shell_commands("dial.md")
    assert len(commands) == 10
    for line in commands:
        run_command(line)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_on_exports_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / "export.md").read_text(encoding="utf-8")
    about = re.search(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert about is not None
    (tmp_path / "about.toml").write_text(about[1], encoding="utf-8")
    commands = shell_commands("export.md")
    assert len(commands) == 9
    for line in commands:
        run_command(line)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_on_own_images_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for part, count in (("train", 40), ("val", 10)):
        x, y = random_images(2 * count, (3, 40, 48), 2)
        for number, (pixels, label) in enumerate(zip(x, y, strict=True)):
            path = tmp_path / "pets" / part / ("cat", "dog")[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0) // (1 + 3 * int(label)))).save(
                path
            )
    text = (GUIDE / "own-images.md").read_text(encoding="utf-8")
    (recipe,) = find_blocks(text, "toml")
    commands = shell_commands("own-images.md")
    assert len(commands) == 7
    for line in commands:
        run_command(line)
        if line.startswith("allrounder new"):  # then the page edits the file
            (tmp_path / "pets.toml").write_text(recipe)


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
