"""How networks and datasets are told apart, and the folders that an evaluation refuses."""

from __future__ import annotations

import copy
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allrounder.data.base import Subset
from allrounder.errors import RunError
from allrounder.evaluation.identity import fingerprint_model_and_data
from tests.support.evaluations import images, run_evaluation, trained_network


@pytest.fixture
def threads_restored() -> Generator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("difference", ["network", "data", "batch_size", "examples", "seed", "threads"])
def test_folder_of_another_evaluation_is_refused(
    difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_evaluation(tmp_path, probes=[])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    model, options = trained_network(), dict[str, Any]()
    match difference:
        case "network":
            next(model.parameters()).data[0, 0, 0, 0] += 1e-6
        case "data":
            options["split"] = Subset(images(), torch.tensor([1, 0, *range(2, 24)]))
        case "threads":
            torch.set_num_threads(2)
        case "batch_size":
            monkeypatch.setattr("tests.support.evaluations.BATCH_SIZE", 4)
        case _:
            options |= {"keep_examples": True} if difference == "examples" else {"seed": 1}
    with pytest.raises(RunError, match=f"holds an evaluation with {difference} = .*; choose another folder"):
        run_evaluation(tmp_path, model=model, **options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before


def test_functions_are_identified_by_their_logits(tmp_path: Path):
    one, other = trained_network(), copy.deepcopy(trained_network())
    for _ in range(2):
        run_evaluation(tmp_path, model=lambda x: one(x), probes=[])
    next(other.parameters()).data.mul_(1.1)
    with pytest.raises(RunError, match="with network = "):
        run_evaluation(tmp_path, model=lambda x: other(x), probes=[])


class Odd(nn.Module):
    """State of every kind: a number, an empty tensor, bytes, flags, and something that is no tensor."""

    def __init__(self, number: float = 1 / 3, extra: str = "a") -> None:
        super().__init__()
        self.extra = extra
        kinds = [torch.tensor(number), torch.zeros(0, 3), torch.ones(2, dtype=torch.uint8), torch.ones(3) > 0]
        for k, tensor in enumerate(kinds):
            self.register_buffer(f"b{k}", tensor)

    def get_extra_state(self) -> str:
        return self.extra

    def set_extra_state(self, state: str) -> None:
        self.extra = state

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def test_fingerprint_depends_on_every_kind_of_state():
    def network_digest(model: nn.Module) -> str:
        return fingerprint_model_and_data(model, images())["network"]

    assert network_digest(Odd()) == network_digest(Odd())
    assert len({network_digest(model) for model in (Odd(), Odd(0.3333334), Odd(extra="b"))}) == 3


class Rescaled(nn.Module):
    """Depends on something that is no tensor, and that it does not show."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x.flatten(1)[:, :3]


def test_fingerprint_depends_on_logits():
    one, two = (fingerprint_model_and_data(Rescaled(by), images()) for by in (1.0, 2.0))
    assert one["data"] == two["data"] and one["network"] != two["network"]
