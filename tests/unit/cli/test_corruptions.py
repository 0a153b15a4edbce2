"""The command line and changed images: `eval --ood`, and the making of sets."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from allrounder.data.corruptions.generate import MARKER_FILE
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from tests.support.interruptions import Point, struck
from tests.unit.cli.test_evaluate import Ask, ask, files
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder", "ask", "files"]  # fixtures


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make(allrounder: Command) -> Command:
    """`allrounder data make-c` and `make-p`."""
    return lambda *words: allrounder("data", *words)


def test_changed_images_alone_need_no_threat(ask: Ask, tmp_path: Path):
    answer = ask(
        "--ood", "c:5,translate@p", "--out", str(tmp_path / "out"), "--n", "3", "--workers", "1", "--force"
    )
    assert answer.code == 0, answer.err
    one = Outcome.load(tmp_path / "out" / OUTCOME_FILE)
    assert len(one) == 3 and len(one.predicted) == 1 + 15 + 16
    assert "corruptions severity 5 (generated)" in flat(answer.out)
    assert "(generated, 1 of 10)" in flat(answer.out)
    assert "Flip rate (generated): " in answer.out and "Corruptions: generated with seed 0" in answer.out
    assert "pgd" not in answer.out and "aa@" not in answer.out
    table = (tmp_path / "out" / "corruptions.md").read_text()
    assert "| fog | - | - | - | - |" in table
    assert "| translate |" in (tmp_path / "out" / "perturbations.md").read_text()


def test_a_folder_comes_to_hold_all_that_was_asked(ask: Ask, tmp_path: Path):
    out = ("--out", str(tmp_path / "out"), "--workers", "1", "--force")
    assert ask("--threat", "Linf:0.05", "--attack", "pgd-2", *out, "--n", "6").code == 0
    answer = ask("--ood", "fog@c:5,tilt@p", *out, "--n", "6")
    assert "also hold 1 probes of earlier calls" in flat(answer.out) and "pgd-2" not in answer.out
    table = (tmp_path / "out" / "table.md").read_text()
    assert "pgd-2@Linf:0.05" in table and "corruptions severity 5" in table and "all frames" in table
    whole = (tmp_path / "out" / OUTCOME_FILE).read_bytes()
    assert ask("--ood", "fog@c:5", *out, "--n", "6").code == 0
    assert (tmp_path / "out" / OUTCOME_FILE).read_bytes() == whole
    assert (tmp_path / "out" / "perturbations.md").is_file()
    other = ask("--threat", "Linf:0.05", "--attack", "pgd-2", *out, "--n", "9")
    assert "no longer shows 32 probes on 6 images" in flat(other.out)
    assert [path.name for path in (tmp_path / "out").glob("*.md")] == ["table.md"]


def test_attacks_that_are_named_are_run_as_well(ask: Ask, tmp_path: Path):
    named = ("--threat", "Linf:0.05", "--attack", "pgd-2", "--n", "6", "--force")
    answer = ask("--ood", "fog@c:5", "--out", str(tmp_path / "out"), "--workers", "1", *named)
    assert answer.code == 0, answer.err
    one = Outcome.load(tmp_path / "out" / OUTCOME_FILE)
    assert list(one.predicted) == ["natural", "pgd-2@Linf:0.05", "fog@c-generated:5"]


def test_all_that_is_asked_is_shown(ask: Ask):
    answer = ask("--ood", "fog@c:3,spatter@c:5", "--n", "6", "--workers", "1", "--force", "--quiet")
    assert answer.code == 0, answer.err
    assert "corruptions severity 3 (generated, 1 of 15)" in flat(answer.out)
    assert "spatter severity 5 (generated)" in flat(answer.out)


def test_tables_of_corruptions_can_be_asked_for(ask: Ask):
    few = ("--ood", "fog@c", "--n", "6", "--workers", "1", "--force", "--quiet")
    answer = ask(*few, "--style", "corruptions")
    assert answer.code == 0, answer.err
    assert "| severity 1 |" in answer.out and "| fog |" in answer.out
    table = list(csv.reader(io.StringIO(ask(*few, "--style", "corruptions-csv").out)))
    assert table[0][1:6] == ["fog"] * 5 and table[1][1:6] == list("12345")
    nothing = ask(*few, "--style", "perturbations")
    assert nothing.code == 1 and "has no perturbations" in flat(nothing.err)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--ood", "frog@c"), 2, 'did you mean "fog"'),
        (("--ood", "q"), 2, "expected c, c:5, p"),
        (("--ood", "c", "--ood-data", "nowhere"), 1, "nowhere: no set found"),
    ],
)
def test_an_invalid_request_prints_one_message(ask: Ask, options: tuple[str, ...], code: int, message: str):
    answer = ask(*options, "--force", "--workers", "1")
    assert answer.code == code
    assert message in flat(answer.err) and "Traceback" not in answer.err


def test_a_set_is_made_where_eval_finds_it(make: Command, files: dict[str, Path], cache: Path, ask: Ask):
    answer = make("make-c", str(files["images.npz"]), "--corruption", "fog", "--corruption", "snow")
    assert answer.code == 0, answer.out
    folder = cache / "images-c-generated"
    assert sorted(path.name for path in folder.glob("[!.]*")) == [
        "fog.npy",
        MARKER_FILE,
        "labels.npy",
        "snow.npy",
    ]
    assert np.load(folder / "fog.npy").shape == (120, 8, 8, 1)
    assert "fog: done" in answer.out and "files:" in answer.out
    with struck(Point("allrounder.data.corruptions.generate:corrupt"), lambda: pytest.fail("made again")):
        assert ask("--ood", "fog@c,snow@c:1", "--workers", "1", "--force", "-q").code == 0


def test_sequences_are_made(make: Command, files: dict[str, Path], tmp_path: Path):
    out = tmp_path / "p"
    answer = make("make-p", str(files["images.npz"]), "--perturbation", "tilt", "--out", str(out))
    assert answer.code == 0, answer.out
    assert np.load(out / "tilt.npy").shape == (24, 31, 8, 8, 1)
    again = make("make-p", str(files["images.npz"]), "--perturbation", "tilt", "--out", str(out))
    assert "tilt (already there): done" in again.out


def test_a_wrong_corruption_is_a_mistake_of_usage(make: Command, files: dict[str, Path]):
    answer = make("make-c", str(files["images.npz"]), "--corruption", "frog")
    assert answer.code == 2
    assert 'did you mean "fog"' in flat(answer.err)


def test_a_signal_stops_the_making(make: Command, files: dict[str, Path], tmp_path: Path):
    point = Point("allrounder.data.corruptions.generate:corrupt", 2)
    with struck(point, lambda: os.kill(os.getpid(), signal.SIGINT)):
        answer = make("make-c", str(files["images.npz"]), "--corruption", "fog", "--out", str(tmp_path / "c"))
    assert answer.code == 75 and "call again to continue" in flat(answer.err)
    assert sorted(path.name for path in (tmp_path / "c").glob("[!.]*")) == [MARKER_FILE, "labels.npy"]


def test_every_option_is_explained(make: Command):
    for verb in ("make-c", "make-p"):
        answer = make(verb, "--help")
        assert answer.code == 0
        assert "--out" in answer.out and "--seed" in answer.out


def test_the_help_names_the_command(allrounder: Command):
    answer = allrounder("eval", "--help")
    assert "--ood" in answer.out and "--ood-data" in answer.out
    assert sys.argv[0] == "allrounder"
