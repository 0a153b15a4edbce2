"""The confidences of an outcome: what they are, and that only the network and the images change them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.errors import Interrupted
from allrounder.evaluation import runner
from allrounder.evaluation.confidence import measure_confidence
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import NATURAL, OUTCOME_FILE, Outcome
from allrounder.system.progress import ProgressEvent
from tests.support.evaluations import PGD, images, read_outcome_bytes, run_evaluation, trained_network


def run(out: Path | None = None, **options: Any) -> Outcome:
    defaults: dict[str, Any] = {"probes": [PGD], "check": "note", "check_masking": False}
    return run_evaluation(out, **{**defaults, **options})


def expected(model: nn.Module, outcome: Outcome) -> np.ndarray:
    logits = model.eval()(images().fetch(torch.arange(24))).detach().double().numpy()
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True))[np.arange(24), outcome.predicted[NATURAL]]


def test_confidence_is_the_probability_of_the_predicted_class(tmp_path: Path):
    outcome = run(tmp_path)
    assert outcome.confidence is not None and outcome.confidence.dtype == np.float64
    assert outcome.confidence == pytest.approx(expected(trained_network(), outcome), abs=1e-6)
    assert (outcome.confidence >= 1 / 3).all() and len(set(outcome.confidence.tolist())) > 20
    stored = Outcome.load(tmp_path / OUTCOME_FILE)
    assert stored.confidence is not None and np.array_equal(stored.confidence, outcome.confidence)
    assert stored.calibration().count.sum() == 24 and 0 < stored.calibration().ece < 1


def test_functions_and_log_probabilities_have_the_same_confidence():
    model = trained_network()
    whole = run(model=model).confidence
    assert whole is not None
    for other in (lambda x: model(x), lambda x: model(x).log_softmax(1), lambda x: model(x) + 7):
        confidence = run(model=other).confidence
        assert confidence is not None and confidence == pytest.approx(whole, abs=1e-5)


def test_evaluations_inside_trainings_measure_none():
    assert run_evaluation(probes=[]).confidence is None


def test_a_stored_confidence_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = run(tmp_path)
    monkeypatch.setattr("allrounder.evaluation.confidence.measure_confidence", None)
    again = run(tmp_path, probes=[Probe.parse("pgd-2@L2:0.1")])
    assert first.confidence is not None and again.confidence is not None
    assert np.array_equal(again.confidence, first.confidence)
    with pytest.raises(TypeError):
        run(tmp_path, n=12)  # other images


def test_a_call_without_confidence_keeps_the_stored_one_and_a_later_one_adds_it(tmp_path: Path):
    run_evaluation(tmp_path)
    assert Outcome.load(tmp_path / OUTCOME_FILE).confidence is None
    added = run(tmp_path).confidence
    run_evaluation(tmp_path, probes=[Probe.parse("pgd-2@L2:0.1")])
    kept = Outcome.load(tmp_path / OUTCOME_FILE)
    assert added is not None and kept.confidence is not None and "pgd-2@L2:0.1" in kept.predicted
    assert np.array_equal(kept.confidence, added)


# Later versions of Python warn of forks, because of threads; nothing here has any.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_and_interruptions_do_not_change_a_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    run(tmp_path / "workers", workers=3)
    assert read_outcome_bytes(tmp_path / "workers") == read_outcome_bytes(tmp_path / "whole")
    monkeypatch.setattr(runner, "REPORT_INTERVAL", -1.0)

    def stop(event: ProgressEvent) -> None:
        if event.stage == str(PGD) and event.done == 8:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        run(tmp_path / "resumed", progress=stop)
    run(tmp_path / "resumed")
    assert read_outcome_bytes(tmp_path / "resumed") == read_outcome_bytes(tmp_path / "whole")


def test_batches_have_one_size_and_the_network_is_left_as_it_was():
    sizes: list[int] = []
    model = trained_network().train()

    def note(module: nn.Module, x: tuple[Tensor, ...]) -> None:
        sizes.append(len(x[0]))
        assert not module.training

    model.register_forward_pre_hook(note)
    rows = torch.arange(21)
    confidence = measure_confidence(model, images(), rows, torch.zeros(21, dtype=torch.int64), batch_size=8)
    assert confidence.shape == (21,) and sizes == [8, 8, 8] and model.training


def test_a_random_network_gets_seeded_numbers():
    network = trained_network()

    def model(x: Tensor) -> Tensor:
        return network(x + 0.1 * torch.randn_like(x))

    rows, predicted = torch.arange(24), torch.zeros(24, dtype=torch.int64)
    before = torch.random.get_rng_state()
    first, again, other = (
        measure_confidence(model, images(), rows, predicted, batch_size=8, seed=seed) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_no_image_has_no_confidence():
    none = torch.arange(0)
    assert measure_confidence(trained_network(), images(), none, none, batch_size=8).shape == (0,)
