"""Networks of other libraries: outputs with logits, keyword arguments, and normalisation."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.errors import InputError, PreflightError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.models.layers import Normalise
from allrounder.models.logits_of import LogitsOf, find_logits
from allrounder.models.normalisation import NORMALISATION_CONSTANTS, parse_normalisation
from allrounder.training.run import load
from allrounder.training.train import train
from tests.support.evaluations import BATCH_SIZE, PGD, images, trained_network
from tests.support.networks import blobs
from tests.support.trainings import SOLO, recipe

MEAN, STD = (0.3,), (0.5,)
OPTIONS = EvalOptions(batch_size=BATCH_SIZE, check_masking=False)


@dataclass
class ClassifierOutput(OrderedDict[str, Any]):
    """An output as in transformers: a dataclass that is also a dictionary of the fields that are not None."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class ImageClassifier(nn.Module):
    """A network with the interface of transformers; it was trained on normalised images."""

    def __init__(self, network: nn.Module, kind: str = "dataclass") -> None:
        super().__init__()
        self.body, self.kind = network, kind

    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        assert pixel_values is not None and labels is None
        logits = self.body(pixel_values)
        if self.kind == "dictionary":
            return {"logits": logits}
        return ClassifierOutput(logits=logits, hidden_states=(pixel_values,))


class KeywordOnly(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.inner = ImageClassifier(network)

    def forward(self, *, pixel_values: Tensor) -> Any:
        return self.inner(pixel_values)


class Undo(nn.Module):
    """x * std + mean, so that a network for images in [0, 1] becomes one for normalised images."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor(STD).view(-1, 1, 1) + torch.tensor(MEAN).view(-1, 1, 1)


def on_normalised() -> nn.Module:
    return nn.Sequential(Undo(), trained_network())


WRAPPED = {
    "dataclass": lambda: LogitsOf(ImageClassifier(on_normalised()), mean=MEAN, std=STD),
    "dictionary": lambda: LogitsOf(ImageClassifier(on_normalised(), "dictionary"), mean=MEAN, std=STD),
    "keyword": lambda: LogitsOf(KeywordOnly(on_normalised()), mean=0.3, std=[0.5], keyword="pixel_values"),
    "no normalisation": lambda: LogitsOf(ImageClassifier(trained_network())),
    "a tensor": lambda: LogitsOf(trained_network()),
}


@pytest.mark.parametrize("form", WRAPPED)
def test_a_wrapped_network_is_evaluated_like_the_network_inside(form: str):
    plain = evaluate(trained_network(), images(), probes=[PGD], options=OPTIONS)
    outcome = evaluate(WRAPPED[form](), images(), probes=[PGD], options=OPTIONS)
    assert np.array_equal(outcome.predicted["natural"], plain.predicted["natural"])
    assert outcome.accuracy(PGD.name) == pytest.approx(plain.accuracy(PGD.name), abs=0.1)
    assert 0 < outcome.accuracy(PGD.name) < outcome.accuracy()


def test_an_output_with_logits_names_the_wrapper(tmp_path: Path):
    model = ImageClassifier(trained_network())
    with pytest.raises(PreflightError, match=r"ClassifierOutput, .*allrounder.LogitsOf\(network, mean="):
        evaluate(model, images(), probes=[PGD], options=OPTIONS)
    with pytest.raises(InputError, match=r"returned a ClassifierOutput .*allrounder.LogitsOf\(network"):
        train(recipe(SOLO), tmp_path / "run", data=blobs(48, 12), model=model, progress=False)
    with pytest.raises(PreflightError) as caught:
        evaluate(Tuples(), images(), probes=[PGD], options=OPTIONS)
    assert "LogitsOf" not in str(caught.value)


def test_a_wrapped_network_is_trained_saved_and_loaded(tmp_path: Path):
    value, data = recipe(SOLO, ("epochs = 3", "epochs = 1")), blobs(48, 12)
    start = LogitsOf(ImageClassifier(trained_network()), mean=MEAN, std=STD)
    train(value, tmp_path / "run", data=data, model=start, progress=False)
    model = load(tmp_path / "run", "last", model=start)
    assert isinstance(model, LogitsOf)
    assert not torch.equal(next(model.parameters()), next(start.parameters()))
    x = data.test.fetch(torch.arange(4))
    assert torch.equal(model(x), model.network((x - 0.3) / 0.5).logits)


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_one_number_may_be_a_scalar_of_numpy_or_torch(number: Any):
    network, x = trained_network(), torch.rand(2, 1, 8, 8)
    expected = LogitsOf(network, mean=0.5, std=0.5)(x)
    assert torch.equal(LogitsOf(network, mean=number, std=number)(x), expected)


def test_wrong_arguments_are_explained():
    network = trained_network()
    x = torch.rand(2, 1, 8, 8)
    with pytest.raises(InputError, match="std: got none, expected both mean and std or neither"):
        LogitsOf(network, mean=MEAN)
    with pytest.raises(InputError, match="got 1 means and 2 deviations"):
        LogitsOf(network, mean=MEAN, std=(0.5, 0.5))
    with pytest.raises(InputError, match="expected finite means and positive deviations"):
        LogitsOf(network, mean=MEAN, std=0.0)
    with pytest.raises(InputError, match="mean: has 3 numbers, but the images have 1 channels"):
        LogitsOf(network, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))(x)
    with pytest.raises(InputError, match="returned a tuple without a tensor `logits`"):
        LogitsOf(Tuples())(x)
    assert not LogitsOf(network.eval()).training and LogitsOf(nn.Identity()).training
    assert find_logits({"logits": [1]}) is None and find_logits(None) is None


class Tuples(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return (x,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("imagenet", NORMALISATION_CONSTANTS["ImageNet"]),
        ("CIFAR-10", NORMALISATION_CONSTANTS["CIFAR-10"]),
        ("fashion_mnist", NORMALISATION_CONSTANTS["Fashion-MNIST"]),
        ("0.5/0.25", ((0.5,), (0.25,))),
        ("0,0.5, 1/1,2,3e-1", ((0.0, 0.5, 1.0), (1.0, 2.0, 0.3))),
    ],
)
def test_constants_have_names_or_are_numbers(text: str, expected: object):
    assert parse_normalisation(text) == expected
    mean, std = parse_normalisation(text)
    assert Normalise(mean, std)(torch.zeros(1, len(mean), 2, 2)).shape == (1, len(mean), 2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imagnet", r'got \'imagnet\', expected cifar-10, .* or MEAN/STD .*did you mean "imagenet"'),
        ("0.5", r"expected cifar-10, .*, or MEAN/STD such as 0.5/0.25"),
        ("0.5/0.5,0.5", "got 1 means and 2 deviations"),
        ("0.5/-1", "expected finite means and positive deviations"),
        ("nan/1", "expected finite means"),
        ("/", "or MEAN/STD"),
    ],
)
def test_unknown_constants_are_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        parse_normalisation(text)
