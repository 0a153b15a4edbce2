"""`allrounder export`, and `allrounder eval` on what it writes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.training.train import train
from tests.unit.cli.test_main import Command, allrounder, flat, overrides

__all__ = ["allrounder"]  # a fixture

PGD = ("--attack", "pgd-3", "--threat", "Linf:0.1", "--n", "6", "--no-masking-check", "--force", "--quiet")
ABOUT = 'link = "x"\nname = "A"\nauthors = "B"\nvenue = "Unpublished"\nreported = "1.00"\nmodel_id = "Me"\n'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which no test may change."""
    folder = tmp_path_factory.mktemp("run")
    sets = [*overrides(folder), "task.linf.objective.attack.steps=1", "model.width=4"]
    return train(Recipe.load("embedded/at-linf", sets), folder / "run", progress=False).folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def fresh_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules called model that a test imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("model", None)
    yield
    sys.modules.pop("model", None)


@pytest.mark.parametrize("to", ["torch", "hub", "robustbench"])
def test_eval_on_an_export_has_the_outcome_of_the_run(
    to: str, allrounder: Command, run: Path, tmp_path: Path, fresh_imports: None
):
    assert allrounder("eval", str(run), *PGD).code == 0
    file = run / "eval" / "best" / OUTCOME_FILE
    outcome = Outcome.load(file)
    options: tuple[str, ...] = ()
    if to == "robustbench":  # AutoAttack would take a while, and its number is only copied
        predicted = {**outcome.predicted, "aa@Linf:0.1": outcome.predicted["pgd-3@Linf:0.1"]}
        Outcome(outcome.label, predicted, outcome.facts).save(file)
        (tmp_path / "about.toml").write_text(ABOUT)
        options = ("--about", str(tmp_path / "about.toml"))
    out = tmp_path / "exported"
    answer = allrounder("export", str(run), "--to", to, "--out", str(out), *options)
    assert answer.code == 0, answer.err
    assert "logits of model.py: equal bits on 8 random images" in answer.out
    threats = "".join(f" --threat {probe.threat}" for probe in Recipe.load(str(run / "recipe.toml")).probes)
    assert threats and f"eval --model {out}/model.py:load --data NAME{threats}" in flat(answer.out).replace(
        "- ", "-"
    )
    data = ("--data", str(run.parents[0] / "blobs.npz"))
    shutil.copy(json_path(run), data[1])
    results = tmp_path / "eval"
    again = allrounder("eval", "--model", f"{out}/model.py:load", *data, *PGD, "--out", str(results))
    assert again.code == 0, again.err
    loaded = Outcome.load(results / OUTCOME_FILE)
    assert list(loaded.predicted) == ["natural", "pgd-3@Linf:0.1"]
    assert outcome.disagreements(loaded) == {"natural": [], "pgd-3@Linf:0.1": []}
    for name, distance in loaded.distance.items():
        assert np.array_equal(distance, outcome.distance[name], equal_nan=True)
    assert np.array_equal(np.asarray(loaded.confidence), np.asarray(outcome.confidence))


def json_path(run: Path) -> Path:
    """The file of images that the recipe of a run names."""
    return Path(getattr(Recipe.load(str(run / "recipe.toml")).data, "path"))  # noqa: B009


def test_a_folder_of_an_export_is_named_by_its_module(allrounder: Command, run: Path, tmp_path: Path):
    out = tmp_path / "exported"
    assert allrounder("export", str(run), "--to", "torch", "--out", str(out), "--quiet").code == 0
    answer = allrounder("eval", str(out))
    assert answer.code == 1
    assert f"for an export: --model {out}/model.py:load --data NAME" in flat(answer.err)


def test_the_weights_of_an_export_can_be_given(
    allrounder: Command, run: Path, tmp_path: Path, fresh_imports: None
):
    out = tmp_path / "exported"
    assert allrounder("export", str(run), "--to", "torch", "--out", str(out), "--quiet").code == 0
    words = ("--model", f"{out}/model.py:build", "--weights", str(out / "weights.pt"))
    answer = allrounder("doctor", *words, "--data", str(json_path(run)))
    assert answer.code in (0, 1) and "6 images, 3 classes" in answer.out, answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "tourch"), 'tourch: expected one of torch, onnx, robustbench, hub; did you mean "torch"?'),
        (("--to", "hub", "--about", "x.toml"), "belongs to --to robustbench; leave it out"),
        (("--to", "torch", "--threat", "Linf:0.1"), "belongs to --to onnx and robustbench; leave it out"),
        (("--to", "robustbench", "--about", "no.toml"), "no.toml: cannot be read"),
        (("--to", "onnx", "--threat", "Linf"), "--threat"),
        (("--to", "robustbench", "--threat", "Linv"), "--threat"),
        (("--to", "torch", "--n", "64"), "belongs to --to onnx; leave it out"),
        (("--to", "hub", "--attack", "pgd-20"), "belongs to --to onnx; leave it out"),
        (("--to", "robustbench", "--data", "embedded"), "belongs to --to onnx; leave it out"),
    ],
)
def test_wrong_options_are_a_mistake_of_usage(
    allrounder: Command, run: Path, words: tuple[str, ...], message: str
):
    answer = allrounder("export", str(run), *words)
    assert answer.code == 2 and message in flat(answer.err)
    assert not (run / "export").exists()


def test_robustbench_names_the_evaluation_that_it_needs(allrounder: Command, run: Path):
    answer = allrounder("export", str(run), "--to", "robustbench")
    assert answer.code == 1 and "run first: allrounder eval" in flat(answer.err)


def test_an_evaluation_of_other_images_is_not_exported(allrounder: Command, run: Path, tmp_path: Path):
    with np.load(json_path(run)) as arrays:
        np.savez(tmp_path / "other.npz", x=1 - arrays["x_test"], y=arrays["y_test"], allow_pickle=False)
    assert allrounder("eval", str(run), "--data", str(tmp_path / "other.npz"), *PGD).code == 0
    answer = allrounder("export", str(run), "--to", "hub")
    assert answer.code == 1 and "is of other images, expected the test images of the run" in flat(answer.err)


@pytest.mark.slow
def test_onnx_is_compared_with_torch_and_can_be_queried(
    allrounder: Command, run: Path, tmp_path: Path, fresh_imports: None
):
    out = tmp_path / "exported"
    words = ("--to", "onnx", "--attack", "pgd-2", "--n", "5", "--out", str(out))
    answer = allrounder("export", str(run), *words, "--threat", "Linf:0.1")
    assert answer.code == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines() if line.startswith(("natural", "pgd-2@"))]
    assert [row[0] for row in rows] == ["natural", "pgd-2@Linf:0.1"] and all("5" in row for row in rows)
    record = json.loads((out / "export.json").read_text())["check"]
    assert record["natural"]["agree"] == record["pgd-2@Linf:0.1"]["agree"] == record["images"] == 5
    query = ("--attack", "square", "--threat", "Linf:0.1", "--n", "4", "--force", "--workers", "1")
    results = ("--data", str(json_path(run)), "--out", str(tmp_path / "eval"))
    queried = allrounder("eval", "--model", f"{out}/model.py:load", *results, *query)
    assert queried.code == 0, queried.err
    direct = allrounder("eval", str(run), *query, "--out", str(tmp_path / "direct"))
    assert direct.code == 0, direct.err
    files = [tmp_path / name / OUTCOME_FILE for name in ("eval", "direct")]
    first, second = (Outcome.load(file) for file in files)
    assert first.disagreements(second)["natural"] == []
