"""ONNX files agree with torch; torch's exporter takes seconds, so most of these tests are slow."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import onnx
import pytest
import torch

from allrounder.errors import RunError
from allrounder.experiments.export import export
from allrounder.experiments.export import onnx as exporter
from allrounder.experiments.export.check import import_network
from allrounder.experiments.export.onnx import _relative_difference
from allrounder.rng import Rng
from allrounder.training.run import load
from tests.support.networks import blobs, tiny
from tests.support.trainings import SOLO, go, recipe


def test_differences_are_relative_to_the_largest_logit_and_never_hide_nan():
    a = torch.tensor([[4.0, -8.0]])
    assert _relative_difference(a, a) == 0 and _relative_difference(a, a + 0.8) == pytest.approx(0.1)
    assert _relative_difference(a / 80, a / 80 + 0.1) == pytest.approx(0.1)
    assert _relative_difference(a, a * torch.nan) == _relative_difference(a, a[:, :1]) == torch.inf
    assert _relative_difference(a * torch.nan, a) == _relative_difference(a * torch.inf, a) == torch.inf


@pytest.mark.slow
def test_the_file_has_a_free_batch_size_and_agrees_with_torch(run: Path):
    exported = export(run, "onnx", attack="pgd-2", n=6)
    file = exported.folder / "model.onnx"
    model = onnx.load(file)
    onnx.checker.check_model(model)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    network, reference = import_network(exported.folder / "model.py"), load(run, "best")
    for count in (1, 5):
        x = Rng(2).fold_in("x").uniform(torch.empty(count, 1, 8, 8))
        torch.testing.assert_close(network(x), reference(x).detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(copy.deepcopy(network)(x), network(x))
    with pytest.raises(TypeError, match="cannot be traced"):
        torch.fx.symbolic_trace(network)
    check = json.loads((exported.folder / "export.json").read_text())["check"]
    assert check == dict(exported.check) and check["images"] == 6
    rows = {name: row for name, row in check.items() if isinstance(row, dict)}
    natural, *attacks = rows
    assert natural == "natural" and all(name.startswith("pgd-2@") for name in attacks)
    assert all(row["agree"] == 6 and row["correct_torch"] == row["correct_onnx"] for row in rows.values())
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(network)  # its module was imported for the check only


@pytest.mark.slow
def test_a_file_that_differs_is_not_written(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporter, "TOLERANCE", -1.0)
    with pytest.raises(
        RunError, match=r"differs from torch on images of natural: got .* nothing was written"
    ):
        export(run, "onnx", attack="pgd-1", n=2)
    assert list((run / "export").iterdir()) == []


@pytest.mark.slow
def test_a_network_from_python_is_exported(tmp_path: Path):
    folder = go(recipe(SOLO), tmp_path / "run").folder
    exported = export(folder, "onnx", model=tiny, attack="pgd-1", n=4, threats=["Linf:0.1"], data=blobs(48))
    assert exported.check["natural"]["agree"] == 4
