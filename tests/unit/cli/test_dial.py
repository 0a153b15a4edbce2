from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from allrounder.cli.dial import STATISTICS
from allrounder.experiments.finished_runs import FinishedRuns
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.system.checked_files import read_json
from allrounder.training.recalibration import Statistics
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.unit.cli.test_main import Command, allrounder, flat, overrides

__all__ = ["allrounder"]  # a fixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs that no test may change, and their data."""
    folder = tmp_path_factory.mktemp("runs")
    sets = [*overrides(folder), "epochs=2", "validation.attack.steps=2"]
    for name in ("generalist-t", "nt", "at-linf"):
        train(f"embedded/{name}", folder / name, overrides=sets, progress=False)
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs"))


THREATS = ("--threat", "Linf:0.1", "--threat", "L2:1")


def test_the_statistics_are_those_of_python():
    assert set(STATISTICS) == set(get_args(Statistics))


def test_dial_prints_the_points_and_saves_the_chosen_one(allrounder: Command, runs: Path):
    run, out = str(runs / "generalist-t"), str(runs / "mixed")
    shares = ("--shares", "linf=0.5,natural=3/10,l2=0.2")
    answer = allrounder("dial", run, "--points", "2", *THREATS, "--attack", "pgd-2", *shares, "--out", out)
    assert answer.code == 0, answer.err
    assert "point 5/5: linf 0.5, natural 0.3, l2 0.2: natural" in answer.out and "ETA" in answer.out
    assert "held-out training images, never test images" in answer.out
    stored = read_json(runs / "generalist-t" / "dial" / "dial.json", "")
    assert len(stored["points"]) == 5 and stored["by"] == "worst"
    assert (runs / "generalist-t" / "dial" / "table.md").read_text().startswith("| mixture | natural |")
    again = allrounder("dial", run, "--points", "2", *THREATS, "--attack", "pgd-2", "--quiet")
    assert again.code == 0 and "point 1" not in again.out and again.out.startswith("mixture")
    held_out = FinishedRuns.open([run]).held_out
    x, y = held_out.fetch(torch.arange(len(held_out))).numpy(), held_out.labels.numpy()
    np.savez(runs / "held-out.npz", allow_pickle=False, x_test=x, y_test=y)
    results = ("--data", str(runs / "held-out.npz"), "--out", str(runs / "eval"), "--no-masking-check")
    evaluated = allrounder("eval", out, *THREATS, "--attack", "pgd-2", "--force", *results)
    assert evaluated.code == 0, evaluated.err
    assert "Weights mixed after training: linf 0.5, natural 0.3, l2 0.2." in flat(evaluated.out)
    outcome, point = Outcome.load(runs / "eval" / OUTCOME_FILE), stored["points"][-1]
    assert outcome.accuracy() == point["natural"] and outcome.worst("pgd-2") == point["worst"]
    robust = {threat: outcome.accuracy("pgd-2", threat) for threat in point["robust"]}
    assert robust == point["robust"]
    listed, logged = allrounder("ls", out), allrounder("log", out)
    assert listed.code == logged.code == 0 and "finished" in listed.out and "mixed: linf 0.5" in logged.out
    assert "no epoch is finished yet" not in logged.out


def test_dial_picks_a_point(allrounder: Command, runs: Path):
    run = str(runs / "generalist-t")
    first = allrounder("dial", run, "--points", "2", *THREATS, "--pick", "natural=0", "--by", "mean")
    assert first.code == 0, first.err
    assert "chosen: " in first.out and "give --out FOLDER" in first.out
    answer = allrounder("dial", run, "--points", "2", *THREATS, "--pick", "natural=1.0", "--pick", "linf=1")
    assert answer.code == 1 and "no point has at least natural 100.00% and linf 100.00%" in flat(answer.err)


def test_dial_takes_statistics_of_natural_images(allrounder: Command, runs: Path):
    run, words = str(runs / "generalist-t"), ("--points", "2", *THREATS, "--attack", "pgd-2")
    note = "Batch-norm statistics are re-estimated on {} {} training images at every point."
    for number, kind in enumerate(("adversarial", "natural"), 1):
        chosen = ("--statistics", kind) if kind == "natural" else ()
        out = str(runs / kind)
        answer = allrounder("dial", run, *words, *chosen, "--pick", "natural=0", "--out", out)
        assert answer.code == 0 and "point 4/4" in answer.out, answer.err
        stored = read_json(runs / "generalist-t" / "dial" / "dial.json", "")
        assert note.format(stored["recalibrated_on"], kind) in flat(answer.out)
        assert stored["statistics"] == Run(out).weights()[1]["statistics"] == kind
        assert len([*(runs / "generalist-t" / "dial" / "points").iterdir()]) == number


def test_dial_mixes_runs(allrounder: Command, runs: Path):
    folders = [str(runs / name) for name in ("nt", "at-linf")]
    answer = allrounder("dial", *folders, "--points", "3", "--threat", "Linf:0.1")
    assert answer.code == 0 and "nt 0.5, at-linf 0.5" in answer.out, answer.err


def test_dial_mixes_outputs(allrounder: Command, runs: Path):
    folders, out = [str(runs / name) for name in ("nt", "at-linf")], str(runs / "ensemble")
    answer = allrounder("dial", *folders, "--outputs", "--out", out, "--threat", "Linf:0.1")
    assert answer.code == 0, answer.err
    assert "ensemble" in answer.out and "a prediction costs that of both networks" in answer.out
    assert Run(out).finished
    evaluated = allrounder(
        "eval", out, "--threat", "Linf:0.1", "--attack", "pgd-2", "--force", "--no-masking-check"
    )
    assert evaluated.code == 0 and "Outputs of 2 networks mixed after training: alpha" in flat(evaluated.out)
    taken = allrounder("dial", *folders, "--outputs", "--out", out, "--threat", "Linf:0.1")
    assert taken.code == 1 and "exists; choose another folder" in taken.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--shares", "linf=0.5,natrual=0.5"), 1, 'did you mean "natural"'),
        (("--shares", "linf=0.5,natural=0.3"), 1, "0.5 + 0.3 is 0.8, expected shares that sum to one"),
        (("--shares", "linf"), 2, "got 'linf', expected NAME=NUMBER"),
        (("--shares", "linf=1,linf=0"), 2, "linf is given twice"),
        (("--shares", "linf=x"), 2, "expected a number"),
        (("--out", "x"), 2, "names no network to save"),
        (("--pick", "natural=0.5", "--shares", "linf=1"), 2, "both choose a mixture"),
        (("--pick", "natural=86"), 1, "natural is 86, expected an accuracy from 0 to 1; did you mean 0.86?"),
        (("--by", "wrost"), 2, 'did you mean "worst"'),
        (("--outputs", "--out", "x"), 2, "expected a natural run, a robust run and --out FOLDER"),
        (("--statistics", "natrual"), 2, 'did you mean "natural"'),
        (("--outputs", "--statistics", "natural"), 2, "every network keeps its own with --outputs"),
        (("--outputs", "--pick", "natural=1"), 2, "choose a mixture of weights"),
        ((), 1, "trained under no threat"),
    ],
)
def test_mistakes_are_explained(
    allrounder: Command, finished: Path, words: tuple[str, ...], code: int, message: str
):
    threats = THREATS if words else ()
    answer = allrounder("dial", str(finished / "generalist-t"), *threats, *words)
    assert (answer.code, answer.out) == (code, "") and message in flat(answer.err), answer.err
