"""Pipelines on the command line: shown, shortened, trained and evaluated like any recipe."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from allrounder.cli import main as cli
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run, load
from tests.support.interruptions import command

SETS = [
    *("epochs=1", "batch_size=1700", "model.width=2", "validation.images=20", "validation.train_images=0"),
    *(
        "validation.attack.steps=1",
        "pipeline.base.length=1",
        "pipeline.base.task.linf.objective.attack.steps=1",
    ),
    *(
        "task.linf.objective.attack.steps=1",
        "task.l2.objective.attack.steps=1",
        "pipeline.buffers=recalibrate",
    ),
]
WORDS = [word for text in SETS for word in ("--set", text)]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    root: Any = cli.app.registered_callback
    monkeypatch.setattr(root, "callback", inspect.unwrap(root.callback))
    monkeypatch.setattr(sys, "argv", [])


def test_a_pipeline_is_shown_with_its_stages(capsys: pytest.CaptureFixture[str]):
    assert command("show", "embedded/soup", *WORDS) == 0
    shown = capsys.readouterr().out
    for stage, passes in (("base", "2/2"), ("natural", "1/1")):
        assert f"# stage {stage}: 1 epochs, {passes} forward/backward passes per step\n" in shown
    assert Recipe.loads(shown) == Recipe.load("embedded/soup", SETS)


def test_pipelines_are_listed(capsys: pytest.CaptureFixture[str]):
    assert command("list", "pipelines") == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("curve", "soup", "self-training"))


@pytest.mark.slow
def test_a_shortened_pipeline_is_trained_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    assert command("train", "embedded/soup", *WORDS, "--out", str(out)) == 0
    assert "best global weights: step 3, epoch 1" in " ".join(capsys.readouterr().out.split())
    assert Run(out).finished and load(out, "l2") is not None
    assert command("eval", str(out), "--attack", "pgd-20", "--threat", "Linf:0.1", "--n", "20") == 0
    assert "pgd-20" in capsys.readouterr().out
    facts = json.loads((out / "env.json").read_text())["sessions"]
    assert len(facts) == 1 and facts[0]["seed"] == 0
