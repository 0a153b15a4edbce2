"""Computed tensors that processes share through a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from allrounder.inference import mapped
from allrounder.inference.mapped import CLAIM, FILE, map_computed_tensors_


class Layer(nn.Module):
    """Holds computed tensors alone, in a tuple, and a parameter."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.alone = scale * torch.arange(6.0).view(2, 3)
        self.pair = (self.alone + 1, self.alone.double() + 2)
        self.sizes = (3, 3)


def tensors(network: nn.Module) -> list[Tensor]:
    return [tensor for layer in network for tensor in (layer.alone, *layer.pair)]  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def small_tensors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "MIN_BYTES", 1)
    monkeypatch.setattr(mapped, "MAX_WAIT", 0.1)


def networks(*scales: float) -> list[nn.Sequential]:
    return [nn.Sequential(Layer(scale), Layer(2 * scale)) for scale in scales]


def test_all_processes_get_the_same_numbers_from_one_file(tmp_path: Path):
    before, *others = networks(1, 1, 1)
    for network in others:
        weight = network.get_parameter("0.weight")
        map_computed_tensors_(network, tmp_path)
        assert network.get_parameter("0.weight") is weight
        for expected, got in zip(tensors(before), tensors(network), strict=True):
            assert torch.equal(expected, got) and expected.dtype == got.dtype
        first, *rest = (tensor.untyped_storage().data_ptr() for tensor in tensors(network))
        assert rest == [first] * 5
    assert (tmp_path / FILE).stat().st_size == 2 * (24 + 24 + 48)


def test_a_network_with_other_numbers_keeps_them(tmp_path: Path):
    first, other = networks(1, 3)
    map_computed_tensors_(first, tmp_path)
    before = tensors(other)
    map_computed_tensors_(other, tmp_path)
    assert all(a is b for a, b in zip(before, tensors(other), strict=True))


def test_a_write_does_not_reach_the_file(tmp_path: Path):
    first, second = networks(1, 1)
    map_computed_tensors_(first, tmp_path)
    content = (tmp_path / FILE).read_bytes()
    tensors(first)[0].zero_()
    assert (tmp_path / FILE).read_bytes() == content
    map_computed_tensors_(second, tmp_path)
    assert tensors(second)[0].sum() == 15


def test_a_process_keeps_its_tensors_if_another_one_was_killed_before_it_wrote(tmp_path: Path):
    (network,) = networks(1)
    before = tensors(network)
    (tmp_path / CLAIM).touch()
    map_computed_tensors_(network, tmp_path)
    assert all(a is b for a, b in zip(before, tensors(network), strict=True))


def test_processes_keep_their_tensors_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", fail)
    for network in networks(1, 1):
        before = tensors(network)
        map_computed_tensors_(network, tmp_path)
        assert all(a is b for a, b in zip(before, tensors(network), strict=True))


def test_a_network_without_computed_tensors_needs_no_file(tmp_path: Path):
    map_computed_tensors_(nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())
