"""Transfer attacks and averaged gradients from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import nn

from allrounder.cli import target
from allrounder.evaluation.evaluate import evaluate
from allrounder.evaluation.probes import Probe
from allrounder.models.normalisation import MeanStd
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from tests.support.evaluations import images, trained_network
from tests.support.networks import tiny
from tests.unit.cli.test_evaluate import LINF, PGD, Ask, ask, files, lines, run
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder", "ask", "files", "run"]  # fixtures


@pytest.fixture
def other_weights(tmp_path: Path) -> Path:
    """The weights of another network of the same architecture."""
    weights = {name: tensor * 0.9 + 0.01 for name, tensor in trained_network().state_dict().items()}
    save_file(weights, tmp_path / "other.safetensors")
    return tmp_path / "other.safetensors"


def test_images_are_crafted_on_the_source_and_stored_by_its_digest(
    ask: Ask, files: dict[str, Path], other_weights: Path, tmp_path: Path
):
    out = ("--out", str(tmp_path / "eval"))
    first = ask(*LINF, *PGD, *out, "--source", str(other_weights))
    assert first.code == 0, first.err
    outcome = Outcome.load(tmp_path / "eval" / OUTCOME_FILE)
    source = tiny()
    source.load_state_dict({k: v * 0.9 + 0.01 for k, v in trained_network().state_dict().items()})
    probe = Probe.parse("pgd-2@Linf:0.05").transfer_from(source.eval(), "other")
    assert re.fullmatch(r"transfer-pgd-2-other-[0-9a-f]{8}@Linf:0.05", str(probe))
    assert list(outcome.predicted) == ["natural", str(probe)]
    expected = evaluate(trained_network(), images(), probes=[probe])
    assert outcome.predicted[str(probe)].tolist() == expected.predicted[str(probe)].tolist()
    assert outcome.facts["white_box"] == {str(probe): [False]}
    before = lines(tmp_path / "eval")
    again = ask(*LINF, *PGD, *out, "--source", str(other_weights))
    assert again.code == 0 and lines(tmp_path / "eval") == before and "fooled" not in again.out
    # Other weights under the same name are another source.
    save_file(trained_network().state_dict(), other_weights)
    changed = ask(*LINF, *PGD, *out, "--source", str(other_weights))
    assert changed.code == 0, changed.err
    names = list(Outcome.load(tmp_path / "eval" / OUTCOME_FILE).predicted)
    assert len(names) == 3 and names[2].startswith("transfer-pgd-2-other-") and names[2] != names[1]


def test_a_run_may_be_the_source_of_another(allrounder: Command, run: Path, tmp_path: Path):
    options = ("--source", str(run), "--threat", "Linf:0.1", "--out", str(tmp_path / "eval"), "--n", "3")
    answer = allrounder("eval", str(run), *options)
    assert answer.code == 0, answer.err
    (name,) = set(Outcome.load(tmp_path / "eval" / OUTCOME_FILE).predicted) - {"natural"}
    assert re.fullmatch(r"transfer-pgd-20-embedded-nt-[0-9a-f]{8}@Linf:0.1", name)


def test_gradients_are_averaged_in_every_step(ask: Ask, tmp_path: Path):
    answer = ask(*LINF, *PGD, "--attack", "apgd-ce", "--eot", "3", "--n", "6", "--out", str(tmp_path))
    assert answer.code == 0, answer.err
    facts = Outcome.load(tmp_path / OUTCOME_FILE).facts
    assert set(facts["settings"]) == {"pgd-2-eot-3@Linf:0.05", "apgd-ce-eot-3@Linf:0.05"}
    assert all("eot=3" in text for (text,) in facts["settings"].values())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("--eot", "2", "--attack", "cw-2"),
            2,
            "cw-2: cannot average gradients, got eot 2; use pgd or an apgd",
        ),
        (("--eot", "2", "--attack", "aa"), 2, "aa: cannot average gradients, got eot 2; .* aa-rand"),
        (("--eot", "0"), 2, "--eot"),
        (("--source", "nowhere.pt"), 1, "nowhere.pt"),
        (("--source", "."), 1, "--source .: not a run folder, expected a run folder, or a weights file"),
        (("--source-model", "resnet18"), 1, "resnet18: names an architecture, which has no weights"),
        (("--source-normalise", "mnist"), 1, "--source-normalise: there is no source; give --source or"),
    ],
)
def test_mistakes_are_found_before_anything_is_done(
    ask: Ask, words: tuple[str, ...], code: int, message: str
):
    answer = ask(*LINF, *PGD, *words)
    assert answer.code == code and answer.out == "", answer
    assert re.search(message, flat(answer.err)), flat(answer.err)


def test_a_run_as_source_brings_its_own_network(allrounder: Command, run: Path, tmp_path: Path):
    answer = allrounder("eval", str(run), "--source", str(run), "--source-model", "resnet18")
    assert answer.code == 1 and "has its own network; leave out --source-model" in flat(answer.err)
    (tmp_path / "weights.pt").write_bytes(b"")
    answer = allrounder("eval", str(run), "--source", str(tmp_path / "weights.pt"))
    assert answer.code == 1 and "a weights file with --source-model NAME" in flat(answer.err)
    answer = allrounder("eval", str(run), "--source", str(run), "--source-normalise", "mnist")
    assert answer.code == 1 and "normalises itself; leave out --source-normalise" in flat(answer.err)


HALF, NONE = ((0.5,), (0.5,)), None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--source", "WEIGHTS"), HALF),
        (("--source-model", "tests.support.networks:tiny"), NONE),
        (("--source-model", "tests.support.networks:tiny", "--source", "WEIGHTS"), NONE),
        (("--source", "WEIGHTS", "--source-normalise", "0.1/1"), ((0.1,), (1.0,))),
    ],
)
def test_the_constants_of_the_target_apply_to_the_source_only_if_it_is_the_same_network(
    ask: Ask,
    other_weights: Path,
    words: tuple[str, ...],
    expected: MeanStd | None,
    monkeypatch: pytest.MonkeyPatch,
):
    constants: list[MeanStd | None] = []

    def load_network(*args: Any, normalise: MeanStd | None, **options: Any) -> nn.Module:
        constants.append(normalise)
        return trained_network()

    monkeypatch.setattr(target, "load_network", load_network)
    words = tuple(str(other_weights) if word == "WEIGHTS" else word for word in words)
    answer = ask(*LINF, *PGD, *words, "--normalise", "0.5/0.5", "--n", "4", "--no-masking-check")
    assert answer.code == 0, answer.err
    assert constants == [HALF, expected]
