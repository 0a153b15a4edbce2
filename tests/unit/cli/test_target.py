"""What the command line can examine: runs, and networks, weights and images of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from allrounder.evaluation.evaluate import evaluate
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from tests.support.evaluations import images, trained_network
from tests.support.paths import PROJECT
from tests.unit.cli.test_evaluate import LINF, PGD, Ask, ask, files, run, shown
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder", "ask", "files", "run"]  # fixtures


def probabilities() -> nn.Module:
    """A network whose evaluation would mean nothing."""
    return nn.Sequential(trained_network(), nn.Softmax(1))


@pytest.mark.parametrize("weights", ["weights.safetensors", "weights.pt"])
def test_somebodys_weights_may_be_in_a_file_of_either_kind(ask: Ask, weights: str, tmp_path: Path):
    answer = ask(*LINF, *PGD, "--out", str(tmp_path / "eval"), "--save-examples", weights=weights)
    assert answer.code == 0, answer.err
    outcome = Outcome.load(tmp_path / "eval" / OUTCOME_FILE)
    plain = Probe.parse("pgd-2@Linf:0.05")
    expected = evaluate(trained_network(), images(), probes=[plain])
    assert np.array_equal(outcome.predicted[str(plain)], expected.predicted[str(plain)])
    assert outcome.facts["name"] == f"tests.support.networks:tiny {weights}"
    assert (tmp_path / "eval" / "examples" / "pgd-2@Linf-0.05.safetensors").is_file()


def test_the_file_of_weights_may_come_first(allrounder: Command, files: dict[str, Path]):
    what = (
        "--model",
        "tests.support.networks:tiny",
        "--data",
        str(files["images.npz"]),
        *LINF,
        *PGD,
        "--quiet",
    )
    first = allrounder("eval", str(files["weights.safetensors"]), *what)
    assert first.code == 0 and "pgd-2@Linf:0.05" in first.out
    several = allrounder("eval", str(files["several.pt"]), *what)
    assert several.code == 1 and "ema" in several.err
    chosen = allrounder("eval", str(files["several.pt"]), *what, "--weights-key", "ema")
    assert chosen.code == 0 and shown(chosen)[:5] == shown(first)[:5]


def test_a_file_with_code_in_it_is_refused(ask: Ask):
    for verb in ("eval", "doctor"):
        options = LINF if verb == "eval" else ()
        answer = ask(*options, verb=verb, weights="code.pt")
        assert answer.code == 1 and answer.out == ""
        assert "holds more than tensors" in flat(answer.err) and "would run code, so it was refused" in flat(
            answer.err
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no network given; give a run folder, or --model NAME --weights FILE --data NAME"),
        (("nowhere",), "nowhere: no such file or folder; give a run folder"),
        (("nowhere", "--weights", "x.pt"), "got two weights files, expected one"),
        (("tests",), "tests: not a run folder, it has no recipe.toml"),
        (("RUN", "--model", "resnet18"), "is a run, which has its own network; leave out --model"),
        (("RUN", "--which", "nonsense"), "nonsense"),
        (("RUN", "--data", "nothing.npz"), "nothing.npz: no such file"),
        (("RUN", "--data", "embedded"), "the data has 10 classes, expected 3 as in the run"),
        (("--model", "resnet18", "--data", "nowhere"), "nowhere: no such dataset"),
    ],
)
@pytest.mark.parametrize("verb", ["eval", "doctor"])
def test_an_invalid_target_is_refused_with_a_reason(
    allrounder: Command, run: Path, verb: str, words: tuple[str, ...], message: str
):
    answer = allrounder(verb, *(str(run) if word == "RUN" else word for word in words))
    assert answer.code == 1 and answer.out == "" and "Traceback" not in answer.err
    assert message in flat(answer.err)


def test_the_hint_for_an_export_can_be_pasted(allrounder: Command, tmp_path: Path):
    folder = tmp_path / "my export"
    folder.mkdir()
    (folder / "model.py").touch()
    answer = allrounder("eval", str(folder))
    assert answer.code == 1
    hint = f"for an export: --model '{folder}/model.py':load --data NAME --threat THREAT"
    assert hint.replace(" ", "") in answer.err.replace("\n", "").replace(" ", "")


def test_the_exit_code_of_the_doctor_is_1_if_it_finds_a_fault(
    ask: Ask, allrounder: Command, run: Path, files: dict[str, Path]
):
    well = ask(verb="doctor")
    assert well.code == 0 and "24 images, 3 classes" in well.out and "no faults found" in well.out
    assert allrounder("doctor", str(run)).code == 0
    bad = ("--model", "tests.unit.cli.test_target:probabilities", "--data", str(files["images.npz"]))
    ill = allrounder("doctor", *bad)
    assert ill.code == 1 and "severe: probabilities: the network returns probabilities" in flat(ill.out)
    stopped = allrounder("eval", *bad, *LINF, *PGD)
    assert stopped.code == 1 and "an evaluation would be meaningless" in stopped.err
    forced = allrounder("eval", *bad, *LINF, *PGD, "--force")
    assert forced.code == 0 and "preflight: probabilities: the network returns" in flat(forced.out)


FACTORY = """
from tests.support.evaluations import trained_network
from tests.support.networks import Tiny

class Mine(Tiny):
    pass

def make():
    return trained_network(Mine)
"""


@pytest.mark.slow
def test_workers_find_a_factory_in_the_current_folder(files: dict[str, Path], tmp_path: Path):
    (tmp_path / "mine.py").write_text(FACTORY)
    root, script = PROJECT, Path(sys.executable).with_name("allrounder")
    words = ["eval", "--model", "mine:make", "--data", str(files["images.npz"]), *LINF, "--attack", "apgd-ce"]
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(root)}}
    for workers in ("1", "2"):
        out = ("--workers", workers, "--out", workers)
        process = subprocess.run(
            [script, *words, *out], capture_output=True, text=True, check=False, **settings
        )
        assert process.returncode == 0, process.stderr
    assert (tmp_path / "1" / OUTCOME_FILE).read_bytes() == (tmp_path / "2" / OUTCOME_FILE).read_bytes()


@pytest.mark.slow
def test_workers_find_the_files_of_the_target_and_of_the_source(files: dict[str, Path], tmp_path: Path):
    for folder in ("target", "source"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(
            f"from {folder}_part import make as load", encoding="utf-8"
        )
        (tmp_path / folder / f"{folder}_part.py").write_text(FACTORY, encoding="utf-8")
    words = ["--model", "target/model.py:load", "--source-model", "source/model.py:load", *LINF, *PGD]
    command = [str(Path(sys.executable).with_name("allrounder")), "eval", *words]
    command += ["--data", str(files["images.npz"]), "--workers", "2"]
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "src")])
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": paths}}
    process = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert process.returncode == 0, process.stderr


def test_the_doctor_looks_for_masked_gradients_under_threats(ask: Ask):
    assert "masked gradients: not checked, no threat is known; give one" in flat(ask(verb="doctor").out)
    checked = ask("--threat", "Linf:0.05", verb="doctor")
    assert checked.code == 0, checked.err
    assert "Linf:0.05: no masked gradients found; a short FAB and Square fool it on" in flat(checked.out)
    wrong = ask("--threat", "Linf", verb="doctor")
    assert wrong.code == 2 and "--threat" in flat(wrong.err)
