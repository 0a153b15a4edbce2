"""Mistakes in calls from Python raise errors of this package that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from allrounder.attacks import craft
from allrounder.data import DATASETS
from allrounder.data.base import Data
from allrounder.data.inputs.coerce import as_data
from allrounder.errors import AllrounderError, DataError, InputError, MissingDataError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from tests.support.networks import Tiny, blobs
from tests.support.trainings import SOLO, go, recipe

X = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
HWC = torch.rand(12, 8, 8, 3)
NAN = torch.full_like(X, torch.nan)
WRONG_PAIRS: list[tuple[Any, Any, str]] = [
    (NAN, Y, "images: got NaN or infinite pixels"),
    (X * 255, Y, r"images: got pixels from .* to 25.*, expected \[0, 1\]; divide by 255"),
    (X - 0.5, Y, "images: got pixels from .*; undo any normalisation"),
    (X.long(), Y, "images: got torch.int64, expected uint8 or a floating type"),
    (HWC, Y, r"images: got shape \(12, 8, 8, 3\).*the channels seem to come last: use x.permute"),
    (X[0], Y, r"images: got shape \(1, 8, 8\), expected"),
    (X, Y.float(), "labels: got torch.float32, expected whole numbers; convert them to int64"),
    (X, torch.eye(3)[Y].long(), r"labels: got shape \(12, 3\), expected \(n,\).*; use y.argmax\(1\)"),
    (X, Y[:5], "labels: got 5 for 12 images"),
    (X, Y.tolist(), "labels: got a list, expected a tensor or an array; convert with torch.tensor"),
    (np.array([["a"]]), Y, "images: got dtype <U1, expected numbers"),
]
OPTIONS = EvalOptions(check="skip")
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(("x", "y", "message"), WRONG_PAIRS)
def test_wrong_images_or_labels_are_named(x: Any, y: Any, message: str):
    calls: list[Callable[[], object]] = [
        lambda: Data.from_arrays("mine", x, y, X, Y, classes=["a", "b", "c"]),
        lambda: evaluate(Tiny(), x, y, norm="Linf", eps=0.1, attacks=["pgd-1"], options=OPTIONS),
        lambda: as_data([(x, y)], (X, Y)),
    ]
    for call in calls[: 3 if isinstance(y, torch.Tensor) else 2]:
        with pytest.raises(DataError):
            call()
    with pytest.raises(DataError, match=message):
        calls[1]()


def test_uint8_images_are_accepted():
    x = (X * 255).to(torch.uint8)
    outcome = evaluate(Tiny(), x, Y, norm="Linf", eps=0.1, attacks=["pgd-1"], options=OPTIONS)
    assert len(outcome) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet18"}, "model: got the text 'resnet18', expected a network.*allrounder.load"),
        ({"model": Tiny}, "model: got the class Tiny, expected a network; call it"),
        ({"data": "cifar10"}, r"data: got a str, expected images.*DATASETS\[NAME\]"),
        ({"data": 3}, "data: got a int, expected images"),
        ({"n": 0}, "n: got 0, expected a whole number, 1 or more"),
        ({"n": 2.5}, "n: got 2.5, expected a whole number"),
        ({"workers": 0}, "workers: got 0, expected a whole number"),
        ({"budget": "fast"}, "budget: got 'fast', expected one of smoke"),
        ({"eps": -1}, "the budget is negative"),
        ({"eps": None}, "expected both or none"),
        ({"norm": "L7"}, "L7"),
        ({"attacks": ["pdg"]}, "unknown attack 'pdg'.*did you mean"),
        ({"threats": ["Linf"]}, "threat 'Linf': expected one text NORM:BUDGET"),
        ({"probes": ["pgd-20"]}, "expected an attack and a threat"),
        ({"ood": "fogg@c"}, "ood: got 'fogg@c', expected one of"),
    ],
)
def test_wrong_arguments_of_evaluate_are_named(arguments: dict[str, Any], message: str):
    given: dict[str, Any] = {"model": Tiny(), "data": blobs(12), "norm": "Linf", "eps": 0.1}
    with pytest.raises(AllrounderError, match=message):
        evaluate(**{**given, **arguments}, options=OPTIONS)


def test_one_attack_and_one_threat_may_be_texts():
    outcome = evaluate(Tiny(), blobs(12), attacks="pgd-1", threats="Linf:0.1", options=OPTIONS)
    assert list(outcome.predicted) == ["natural", "pgd-1@Linf:0.1"]


def test_craft_names_wrong_images():
    with pytest.raises(InputError, match=r"images are torch\.uint8"):
        craft(Tiny(), (X * 255).to(torch.uint8), Y, threat="Linf:0.1")


class Wide(nn.Module):
    """Returns too many logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Wide(), r"model: returned shape \(1, 64\) for 1 image, expected logits of shape \(1, 3\)"),
        (nn.Conv2d(3, 3, 1), r"model: fails on images of shape \(1, 8, 8\): .*channels"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(model: Any, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        go(recipe(SOLO), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


def test_missing_files_of_a_dataset_are_an_error_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path))
    for kind in ("cifar10", "mnist", "svhn", "imagenet", "tiny-imagenet"):
        with pytest.raises(MissingDataError, match=f"{tmp_path.name}/{kind}"):
            DATASETS[kind]().load()
