"""Programs on the command line: shown, shortened, trained and evaluated like any recipe."""

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
    *("epochs=1", "batch=1700", "model.width=2", "validation.images=20", "validation.train_images=0"),
    *(
        "validation.attack.steps=1",
        "program.base.length=1",
        "program.base.task.linf.objective.attack.steps=1",
    ),
    *(
        "task.linf.objective.attack.steps=1",
        "task.l2.objective.attack.steps=1",
        "program.buffers=recalibrate",
    ),
]
WORDS = [word for text in SETS for word in ("--set", text)]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    root: Any = cli.app.registered_callback
    monkeypatch.setattr(root, "callback", inspect.unwrap(root.callback))
    monkeypatch.setattr(sys, "argv", [])


def test_a_program_is_shown_with_its_trainings(capsys: pytest.CaptureFixture[str]):
    assert command("show", "embedded/soup", *WORDS) == 0
    shown = capsys.readouterr().out
    for line in ("# training base: 1 epochs, 2/2 passes a step", "# training natural: 1 epochs, 1/1 passes"):
        assert line in shown
    assert Recipe.loads(shown) == Recipe.load("embedded/soup", SETS)


def test_programs_are_listed(capsys: pytest.CaptureFixture[str]):
    assert command("list", "programs") == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("curve", "soup", "self-training"))


def test_a_shortened_program_is_trained_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    assert command("train", "embedded/soup", *WORDS, "--out", str(out)) == 0
    assert "best global weights: epoch 1" in " ".join(capsys.readouterr().out.split())
    assert Run(out).finished and load(out, "l2") is not None
    assert command("eval", str(out), "--attack", "pgd-20", "--threat", "Linf:0.1", "--n", "20") == 0
    assert "pgd-20" in capsys.readouterr().out
    facts = json.loads((out / "env.json").read_text())
    assert len(facts) == 1 and facts[0]["seed"] == 0
