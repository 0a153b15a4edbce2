"""Files of weights that would hang the program, or fill its memory, are refused with one clear error."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from allrounder.models import external
from allrounder.models.external import load_network
from allrounder.models.small_cnn import SmallCnn
from tests.support.refusals import refusal

SHAPE = (1, 12, 12)
TABLES = "more than 10,000 tables, or more than 16 inside each other; save network.state_dict()"
NO_ARRAY = "is sparse, nested, quantized or empty, expected an array of numbers"
HUGE = 10**12


def weights() -> dict[str, torch.Tensor]:
    return SmallCnn(width=2).build(3, SHAPE).state_dict()


def inside_itself() -> dict[str, Any]:
    table: dict[str, Any] = {}
    table["more"] = table
    return table


def doubled() -> dict[str, Any]:
    """Forty levels of two equal tables each: a trillion paths to one matrix."""
    table: dict[str, Any] = {"weight": torch.ones(2, 2)}
    for _ in range(40):
        table = {"a": table, "b": table}
    return table


def nested_tensor() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])  # pyright: ignore[reportUnknownVariableType]


CASES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a table inside itself": (inside_itself, TABLES),
    "tables that double": (doubled, TABLES),
    "a constant that repeats": (
        lambda: {**weights(), "mean": torch.ones(1).expand(HUGE)},
        "mean has the shape (1000000000000,), but only repeats a few numbers",
    ),
    "a matrix that repeats": (
        lambda: {"conv1.weight": torch.ones(1).expand(10**6, 10**6)},
        "conv1.weight has the shape (1000000, 1000000), but only repeats",
    ),
    "sparse weights": (lambda: {name: tensor.to_sparse() for name, tensor in weights().items()}, NO_ARRAY),
    "a sparse constant": (
        lambda: {**weights(), "mean": torch.zeros(HUGE, layout=torch.sparse_coo)},
        f"mean {NO_ARRAY}",
    ),
    "weights without numbers": (
        lambda: {name: tensor.to("meta") for name, tensor in weights().items()},
        NO_ARRAY,
    ),
    "nested tensors": (lambda: {**weights(), "mean": nested_tensor()}, f"mean {NO_ARRAY}"),
    "long names": (lambda: {"x" * 10**5: torch.ones(2, 2)}, "more characters"),
}


FORMS = [
    *((case, "zip") for case in CASES),
    ("tables that double", "legacy"),
    ("a matrix that repeats", "legacy"),
]


@pytest.mark.parametrize(("case", "form"), FORMS)
def test_hostile_weights_are_refused(case: str, form: str, tmp_path: Path):
    make, message = CASES[case]
    file = tmp_path / "own.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about sparse and nested tensors
        torch.save(make(), file, _use_new_zipfile_serialization=form == "zip")
    got = refusal(lambda: load_network("small-cnn", file, classes=3, shape=SHAPE))
    assert message in got and "own.pt: " in got and len(got) < 5000


def test_a_constant_that_repeats_a_little_is_read(tmp_path: Path):
    content = {**weights(), "mean": torch.full((1,), 0.5).expand(1), "std": torch.full((1,), 0.25)}
    torch.save({**content, "bn1.running_mean": torch.zeros(1).expand(2)}, tmp_path / "own.pt")
    (tmp_path / "factory.py").write_text(
        "from allrounder.models.small_cnn import SmallCnn\n"
        f"make = lambda: SmallCnn(width=2, mean=(0.5,), std=(0.25,)).build(3, {SHAPE})\n"
    )
    network = load_network(f"{tmp_path}/factory.py:make", tmp_path / "own.pt", classes=3, shape=SHAPE)
    assert torch.equal(network.get_buffer("bn1.running_mean"), torch.zeros(2))


def test_a_file_that_inflates_beyond_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save({"weight": torch.zeros(2, 2)}, tmp_path / "own.pt")
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(tmp_path / "own.pt") as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, bytes(2**26) if name.endswith("data/0") else source.read(name))
    (tmp_path / "own.pt").write_bytes(packed.getvalue())
    assert len(packed.getvalue()) < 2**18
    monkeypatch.setattr(external, "total_memory", lambda: 2**26 - 1)
    message = refusal(lambda: load_network("small-cnn", tmp_path / "own.pt", classes=3, shape=SHAPE))
    assert "it does not fit into the memory of this machine" in message
