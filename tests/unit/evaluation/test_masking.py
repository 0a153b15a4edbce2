"""The check for masked gradients, on a linear network with and without something that hides its gradient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Square
from allrounder.data.base import Split
from allrounder.evaluation.assemble import update_outcome
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.masking import CHECK_ATTACK, choose_positions
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.render import render
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.support.networks import blobs

THREATS = ["Linf:1/4"]
NOTE = EvalOptions(check="note", batch_size=16)


class NearestMean(nn.Module):
    """A linear classifier of the blobs; `scale` saturates the softmax, and with it the cross-entropy."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        train = blobs().train
        x = train.fetch(torch.arange(len(train))).flatten(1)
        means = torch.stack([x[train.labels == k].mean(0) for k in range(3)])
        self.scale = scale
        self.linear = nn.Linear(means.shape[1], 3)
        self.linear.weight.data = means
        self.linear.bias.data = -means.square().sum(1) / 2

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.linear(x.flatten(1))


class Quantised(NearestMean):
    """Rounds images: the gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((16 * x).round() / 16)


def images() -> Split:
    return blobs(test=60).test


def run(model: nn.Module, *attacks: str, out: Path | None = None, workers: int = 1) -> Outcome:
    return evaluate(model, images(), threats=THREATS, attacks=attacks, out=out, workers=workers, options=NOTE)


@pytest.mark.parametrize("model", [NearestMean(1e6), Quantised()], ids=["saturated", "quantised"])
def test_masked_gradients_are_flagged_in_tables_that_are_printed_later(model: nn.Module, tmp_path: Path):
    run(model, "pgd-5", "mim-5", out=tmp_path)
    outcome = Outcome.load(tmp_path / OUTCOME_FILE)
    counts = outcome.facts["masking"]["Linf:1/4"]
    assert counts["attacks"] == ["pgd-5", "mim-5"] and counts["images"] == 50
    assert counts["fooled"] > 10 and counts["robust"] >= counts["fooled"]
    (flag,) = [flag for flag in outcome.facts["flags"] if "gradients are masked" in flag]
    assert flag.startswith("Linf:1/4: gradients are masked, or pgd-5, mim-5 too weak")
    assert f"FLAGGED: {flag}." in render({"network": outcome})


def test_a_network_with_useful_gradients_is_not_flagged():
    outcome = run(NearestMean(), "pgd-10")
    assert outcome.facts["masking"]["Linf:1/4"]["fooled"] <= 2
    assert not any("masked" in flag for flag in outcome.facts["flags"])


def test_predictions_are_those_without_the_check_and_the_check_can_be_switched_off():
    off = evaluate(
        Quantised(),
        images(),
        threats=THREATS,
        attacks=["pgd-3"],
        options=replace(NOTE, check_masking=False),
    )
    skipped = evaluate(
        Quantised(), images(), threats=THREATS, attacks=["pgd-3"], options=replace(NOTE, check="skip")
    )
    assert "masking" not in off.facts and "masking" not in skipped.facts
    on = run(Quantised(), "pgd-3")
    assert list(on.predicted) == list(off.predicted)
    assert all(np.array_equal(on.predicted[name], off.predicted[name]) for name in on.predicted)


@pytest.mark.parametrize("attacks", [("fab-t",), ("pgd-2", "square")])
def test_threats_under_fab_or_square_need_no_check(attacks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allrounder.evaluation.masking._count_fooled", None)
    outcome = evaluate(NearestMean(), images(), threats=["Linf:1/100"], attacks=attacks, n=24, options=NOTE)
    assert "masking" not in outcome.facts


def test_too_few_images_and_random_networks_are_not_checked():
    few = evaluate(Quantised(), images(), threats=THREATS, attacks=["pgd-2"], n=12, options=NOTE)
    assert "masking" not in few.facts

    class Random(NearestMean):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0.1 * torch.randn_like(x))

    assert "masking" not in run(Random(), "pgd-2").facts


@pytest.mark.slow
def test_a_second_call_repeats_nothing_and_processes_give_the_same_bytes(tmp_path: Path):
    folders = [tmp_path / name for name in ("serial", "workers")]
    run(Quantised(), "pgd-2", out=folders[0])
    shards = {path: path.stat().st_mtime_ns for path in folders[0].rglob("results/**/*.safetensors")}
    assert any("fab" in str(path) for path in shards)
    run(Quantised(), "pgd-2", out=folders[0])
    assert shards == {path: path.stat().st_mtime_ns for path in folders[0].rglob("results/**/*.safetensors")}
    run(Quantised(), "pgd-2", out=folders[1], workers=2)
    first, second = (Outcome.load(folder / OUTCOME_FILE) for folder in folders)
    assert first.facts["masking"] == second.facts["masking"]
    assert np.array_equal(first.predicted["pgd-2@Linf:1/4"], second.predicted["pgd-2@Linf:1/4"])


def test_the_check_is_dropped_after_fab_or_square_evaluates_the_same_images(tmp_path: Path):
    square = Probe("square", Square(queries=5), Threat.parse(THREATS[0]))
    run(Quantised(), "pgd-2", out=tmp_path)
    before = Outcome.load(tmp_path / OUTCOME_FILE)
    assert any("after a short FAB and Square" in flag for flag in before.facts["flags"])
    evaluate(Quantised(), images(), probes=[square], out=tmp_path, options=NOTE)
    after = Outcome.load(tmp_path / OUTCOME_FILE)
    assert "masking" not in after.facts and "pgd-2@Linf:1/4" in after.predicted
    assert not any("after a short FAB and Square" in flag for flag in after.facts["flags"])


@pytest.mark.parametrize("stage", ["fab", "fab-t", "square"])
def test_the_check_of_a_threat_counts_only_without_fab_and_square(stage: str):
    label = np.array([0, 1])

    def outcome(name: str, stages: list[str], masking: dict[str, int]) -> Outcome:
        facts = {"stages": {name: stages}, "masking": masking}
        return Outcome(label, {"natural": label, name: label}, facts)

    checked = outcome("pgd-2@Linf:1/4", ["pgd"], {"Linf:1/4": 1, "L2:1/4": 2})
    attacked = outcome("aa@Linf:1/4", ["apgd-ce", stage], {})
    assert update_outcome(checked, attacked).facts["masking"] == {"L2:1/4": 2}
    assert update_outcome(attacked, checked).facts["masking"] == {"L2:1/4": 2}
    assert update_outcome(checked, checked).facts["masking"] == checked.facts["masking"]


def test_images_are_balanced_over_classes_and_classified_correctly():
    label = np.array([0] * 100 + [1] * 30 + [2] * 4)
    predicted = label.copy()
    predicted[:10] = 1
    chosen = choose_positions(Outcome(label, {"natural": predicted}))
    assert len(chosen) == 50 and (predicted[chosen] == label[chosen]).all()
    assert np.bincount(label[chosen]).tolist() == [23, 23, 4]
    assert chosen.tolist() == sorted(chosen.tolist()) and chosen[0] == 10


def test_the_check_takes_the_passes_that_the_guide_names():
    stages = CHECK_ATTACK.stages(Threat.parse("L2:1").norm)
    assert sum((attack.evaluation_passes(10) for attack in stages), Passes()) == Passes(483, 90)
