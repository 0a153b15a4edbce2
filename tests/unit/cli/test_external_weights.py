"""Weights in the form of torchvision and timm, evaluated from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.models.external import load_network
from allrounder.models.normalisation import parse_normalisation
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from tests.unit.cli.test_main import Command, allrounder, flat
from tests.unit.models.test_state_dict_match import Residual, drawn

__all__ = ["allrounder"]  # a fixture

X = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
FACTORY = """
import torch
from torch import nn

def make():
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    nn.init.normal_(network[1].weight, generator=torch.Generator().manual_seed(1))
    nn.init.zeros_(network[1].bias)
    return network
"""


def normalise(x: Tensor, text: str = "imagenet") -> Tensor:
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in parse_normalisation(text))
    return (x - mean) / std


def balanced(network: nn.Module) -> nn.Module:
    """The network with a last layer that predicts several classes of normalised X."""
    with torch.no_grad():
        logits = network(normalise(X))
        network.get_parameter("fc.bias").sub_(logits.mean(0))
    return network


@pytest.fixture(scope="module")
def public() -> nn.Module:
    """ResNet-50 with the names of torchvision."""
    return balanced(drawn(lambda: Residual(True, "downsample", "fc", width=64)))


def write_images(path: Path, labels: Tensor) -> str:
    np.savez(path, x=X.numpy(), y=labels.numpy(), allow_pickle=False)
    return str(path)


def evaluate(allrounder: Command, folder: Path, *words: str) -> Outcome:
    more = ("--threat", "Linf:1/255", "--attack", "pgd-1", "--force", "--no-masking-check", "--workers", "1")
    answer = allrounder("eval", *words, *more, "--out", str(folder))
    assert answer.code == 0, answer.err
    return Outcome.load(folder / OUTCOME_FILE)


def test_weights_of_a_public_resnet50_are_loaded(public: nn.Module, tmp_path: Path):
    torch.save(public.state_dict(), tmp_path / "net.pt")
    constants = parse_normalisation("imagenet")
    network = load_network(
        "resnet50", tmp_path / "net.pt", classes=10, shape=(3, 16, 16), normalise=constants
    )
    with torch.no_grad():
        expected = public(normalise(X))
        assert torch.allclose(network(X), expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torchvision", "timm"])
def test_weights_of_a_public_resnet50_are_evaluated(
    form: str, public: nn.Module, allrounder: Command, tmp_path: Path
):
    weights = dict(public.state_dict())
    if form == "timm":
        renamed = {name.replace("fc.", "head.fc."): tensor for name, tensor in weights.items()}
        torch.save({"epoch": 3, "arch": "resnet50", "state_dict": renamed}, tmp_path / "net.pt")
    else:
        torch.save(weights, tmp_path / "net.pt")
    with torch.no_grad():
        expected, raw = (public(images).argmax(1).tolist() for images in (normalise(X), X))
    assert len(set(expected)) > 1 and expected != raw, "the normalisation must matter"
    data = write_images(tmp_path / "images.npz", torch.arange(10))
    words = ("--model", "resnet50", "--weights", str(tmp_path / "net.pt"), "--data", data)
    outcome = evaluate(allrounder, tmp_path / "eval", *words, "--normalise", "imagenet")
    assert outcome.predicted["natural"].tolist() == expected
    assert outcome.facts["normalised"] == "imagenet"


def test_the_network_of_a_factory_is_normalised_too(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "linear_factory.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = write_images(tmp_path / "images.npz", torch.arange(10))
    words = ("--model", "linear_factory:make", "--data", data)
    results = [
        evaluate(allrounder, tmp_path / name.replace("/", "-"), *words, "--normalise", name)
        for name in ("0.9/0.1", "0.9,0.9,0.9/0.1,0.1,0.1", "0.1/1")
    ]
    one, same, other = (outcome.predicted["natural"].tolist() for outcome in results)
    assert one == same != other


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ("imagnet", 'normalisation: got .*did you mean "imagenet"'),
        ("0.5,0.5/0.5,0.5", "has 2 numbers, but the images have 3 channels"),
    ],
)
def test_wrong_constants_are_refused(
    constants: str, message: str, allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "linear_factory.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = write_images(tmp_path / "images.npz", torch.arange(10))
    answer = allrounder("doctor", "--model", "linear_factory:make", "--data", data, "--normalise", constants)
    assert answer.code == 1 and "Traceback" not in answer.err
    with pytest.raises(ValueError, match=message):
        raise ValueError(flat(answer.err))


def test_a_file_with_constants_takes_no_others(public: nn.Module, allrounder: Command, tmp_path: Path):
    constants = {"mean": torch.full((3,), 0.5), "std": torch.full((3,), 0.25)}
    torch.save({**public.state_dict(), **constants}, tmp_path / "net.pt")
    data = write_images(tmp_path / "images.npz", torch.arange(10))
    words = ("--model", "resnet50", "--weights", str(tmp_path / "net.pt"), "--data", data)
    answer = allrounder("doctor", *words, "--normalise", "imagenet")
    assert answer.code == 1 and "normalises the images already" in flat(answer.err)


NORMALISED = """
from allrounder.models.logits_of import LogitsOf
from torch import nn

def make():
    return LogitsOf(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), mean=[0.5, 0.5, 0.5], std=[0.25] * 3)
"""


def test_a_factory_with_constants_takes_no_others(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "normalised_factory.py").write_text(NORMALISED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = write_images(tmp_path / "images.npz", torch.arange(10))
    words = ("--model", "normalised_factory:make", "--data", data)
    answer = allrounder("doctor", *words, "--normalise", "imagenet")
    assert answer.code == 1 and "normalised_factory:make: its network normalises" in flat(answer.err)
    assert "already (mean (0.5, 0.5, 0.5), std (0.25, 0.25, 0.25)); give no other" in flat(answer.err)
    assert "already" not in flat(allrounder("doctor", *words).err)
