"""Networks, images, labels and threats in every form that people have them; what is said of wrong ones."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from allrounder.attacks import Apgd, Attack, AutoAttack, Fab, Square
from allrounder.data.base import Data, Subset
from allrounder.data.inputs.coerce import as_split
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.preflight import PreflightError
from allrounder.report.outcome import Outcome
from allrounder.rng import Rng
from allrounder.threats.norms import Norm
from tests.support.evaluations import BATCH_SIZE, PGD, group_options, images, trained_network
from tests.support.networks import blobs

COUNT = 12
OPTIONS = EvalOptions(batch_size=BATCH_SIZE)
X, Y = images(COUNT).fetch(torch.arange(COUNT)), images(COUNT).labels
BYTES = (255 * X).round().to(torch.uint8)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack with the same kinds of stages, but short."""

    def stages(self: AutoAttack, norm: Norm) -> tuple[Attack, ...]:
        targeted = Apgd(steps=2, surrogate="dlr", targets=9)
        return Apgd(steps=2), targeted, Fab(steps=2, targets=9), Square(queries=3)

    monkeypatch.setattr(AutoAttack, "stages", stages)


def same(one: Outcome, other: Outcome) -> bool:
    """Equal in every prediction and distance."""
    return one.predicted.keys() == other.predicted.keys() and all(
        np.array_equal(one.predicted[name], other.predicted[name])
        and np.array_equal(one.distance.get(name, 0), other.distance.get(name, 0), equal_nan=True)
        for name in one.predicted
    )


def run(model: Callable[[Tensor], Tensor], *data: Any, **options: Any) -> Outcome:
    options = {"probes": [PGD], "batch_size": BATCH_SIZE, "check": "skip", **options}
    return evaluate(model, *data, **group_options(options))


class Plain:
    """No module, but can be called."""

    def __init__(self) -> None:
        self.net = trained_network()

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)

    def answer(self, x: Tensor, scale: float = 1) -> Tensor:
        return scale * self.net(x)


def test_any_callable_is_a_network():
    first = run(trained_network(), X, Y)
    assert 0 < first.accuracy(PGD.name) < first.accuracy()
    assert trained_network().training is False
    for model in (
        lambda x: trained_network()(x),
        Plain(),
        Plain().answer,
        partial(Plain().answer, scale=1),
        nn.Sequential(nn.Identity(), trained_network()),
    ):
        outcome = run(model, X, Y)
        # A function is not folded, so other bits may come of it; not so of a module.
        assert np.array_equal(outcome.predicted["natural"], first.predicted["natural"])
        assert outcome.accuracy(PGD.name) == pytest.approx(first.accuracy(PGD.name), abs=0.1)


class Mappings(Dataset[dict[str, Any]]):
    """A dataset whose items are mappings, as in the library datasets of Hugging Face."""

    def __init__(self, image: str, label: str) -> None:
        self.names = image, label

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, position: int) -> dict[str, Any]:
        image, label = self.names
        return {"id": f"item {position}", image: X[position], label: int(Y[position])}


def forms() -> dict[str, tuple[Any, ...]]:
    """The same images in every form."""
    x, y = X.numpy(), Y.numpy()
    pairs = [(X[:5], Y[:5]), (X[5:], Y[5:])]
    big = x.astype(">f4")
    return {
        "tensors": (X, Y),
        "arrays": (x, y),
        "a tensor and an array": (X, y),
        "labels of 32 bits": (X, Y.int()),
        "labels of a byte": (x, y.astype(np.uint8)),
        "float64": (X.double(), Y),
        "another byte order": (big, y),
        "read only": (np.frombuffer(x.tobytes(), np.float32).reshape(x.shape), y),
        "not contiguous": (X.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), Y),
        "with a gradient": (X.clone().requires_grad_(), Y),
        "a dataset": (Data.from_arrays("d", X[:3], Y[:3], X, Y, ["a", "b", "c"]),),
        "a split": (images(COUNT),),
        "a part of a split": (Subset(images(20), torch.arange(COUNT)),),
        "an object with items": (TensorDataset(X, Y),),
        "a loader": (DataLoader(TensorDataset(X, Y), batch_size=5),),
        "a list of pairs": (pairs,),
        "a generator of triples of arrays": (((x.numpy(), y.numpy(), "more") for x, y in pairs),),
        "a loader of mappings": (DataLoader(Mappings("pixel_values", "labels"), batch_size=5),),
        "an object with mappings": (Mappings("img", "label"),),
        "a generator of lists": (([x, y] for x, y in pairs),),
    }


@pytest.mark.parametrize("form", forms())
def test_images_may_have_any_form(form: str):
    outcome = run(trained_network(), *forms()[form])
    assert outcome.label.tolist() == Y.tolist()
    assert same(outcome, run(trained_network(), X, Y))


def test_bytes_are_divided_by_255():
    outcome = run(trained_network(), BYTES, Y)
    assert same(outcome, run(trained_network(), BYTES.float() / 255, Y))
    assert same(outcome, run(trained_network(), DataLoader(TensorDataset(BYTES, Y), batch_size=7)))
    assert same(outcome, run(trained_network(), BYTES.numpy(), Y.numpy()))


def test_inputs_are_not_modified():
    x, y = X.clone(), Y.clone()
    run(trained_network(), x, y)
    assert torch.equal(x, X) and torch.equal(y, Y)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X,), r"labels: got none, expected one for each image; give \(model, x, y, ...\)"),
        ((X, Y[:5]), "labels: got 5 for 12 images, expected one for each image"),
        ((X, Y.float()), "labels: got torch.float32, expected whole numbers"),
        ((X, Y[:, None]), r"labels: got shape \(12, 1\), expected \(n,\)"),
        ((X, Y - 1), "labels: got numbers from -1 to 1, expected 0 to 1"),
        ((X, Y.tolist()), "labels: got a list, expected a tensor or an array; convert with torch.tensor"),
        ((2 * X - 1, Y), r"images: got pixels from .* expected \[0, 1\]; undo any normalisation"),
        ((255 * X, Y), r"expected \[0, 1\]; divide by 255, or give uint8"),
        ((X[:, 0], Y), r'images: got shape \(12, 8, 8\), expected \(n, c, h, w\), .*layout "nhw"'),
        ((X[0], Y), "images: got shape"),
        ((X[:0], Y[:0]), "images: got shape .*, none of them 0"),
        ((BYTES.int(), Y), "images: got torch.int32, expected uint8 or a floating type"),
        ((X.where(X.min() < X, torch.nan), Y), "images: got NaN or infinite pixels"),
        ((X.where(X.min() < X, torch.inf), Y), "images: got NaN or infinite pixels"),
        ((np.array([["a"]]), Y), "images: got dtype <U1, expected numbers"),
        ((images(), Y), "labels: got some beside a dataset, expected none"),
        (("cifar10",), "data: got a str, expected images and labels, a dataset, or a loader"),
        ((None,), "data: got a NoneType, expected images and labels"),
        ((TensorDataset(X, Y), Y), "data: got a TensorDataset, expected images and labels, .*a loader"),
        (([(X, Y)], Y), "data: got a list, expected images and labels"),
        (([],), r"loader: got no batch, expected pairs \(images, labels\)"),
        (([X, Y],), "loader: got a Tensor, expected pairs"),
        (([(X,)],), "loader: got a tuple, expected pairs"),
        (
            ([{"x": X, "label": Y}],),
            "loader: got a mapping with the keys x, label, expected exactly one of image, .*pixel_values",
        ),
        (
            ([{"image": X, "img": X, "label": Y}],),
            "expected exactly one of .*; rename the keys, or give pairs",
        ),
        (
            (zip(X, Y, strict=True),),
            r"loader: got images of shape \(1, 8, 8\) and labels of shape \(\)",
        ),
        ((iter([(X[0], 1)]),), "labels of a loader: got a int, expected a tensor or an array"),
        (([(X, Y), (X[:, :, 1:], Y)],), r"loader: got images of shape \(12, 1, 7, 8\) .* of one shape"),
    ],
)
def test_wrong_images_and_labels_are_explained(data: tuple[Any, ...], message: str):
    # Whoever calls it need not have types checked as these tests have.
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(as_split)(*data)


def test_labels_beyond_the_last_class_are_refused():
    with pytest.raises(PreflightError, match="the labels go up to 3, expected at most 2 with 3 classes"):
        evaluate(trained_network(), X, Y + 1)


@pytest.mark.usefixtures("brief")
def test_a_norm_and_a_budget_are_autoattack():
    outcome = evaluate(trained_network(), X, Y, norm="Linf", eps=8 / 255, options=OPTIONS)
    assert list(outcome.predicted) == ["natural", "aa@Linf:8/255"]
    assert outcome.accuracy("aa", "Linf") == outcome.accuracy("aa", "Linf:8/255") == outcome.accuracy("aa")
    several = evaluate(
        trained_network(),
        X,
        Y,
        norm="linf",
        eps=["0.1", 1 / 510],
        options=EvalOptions(batch_size=BATCH_SIZE, check="skip"),
    )
    assert list(several.predicted) == ["natural", "aa@Linf:0.1", f"aa@Linf:{1 / 510}"]
    assert several.facts["stages"]["aa@Linf:0.1"] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    points = several.curve("aa", "Linf")
    assert [eps for eps, _ in points] == [1 / 510, 0.1]
    assert [share for _, share in points] == sorted((share for _, share in points), reverse=True)


@pytest.mark.usefixtures("brief")
def test_outcome_of_several_threats_has_all_numbers():
    options = EvalOptions(batch_size=BATCH_SIZE, check="skip")
    threats = ["Linf:0.03", "L2:0.3"]
    outcome, other = (
        evaluate(model, X, Y, threats=threats, options=options) for model in (trained_network(), Plain())
    )
    assert list(outcome.predicted) == ["natural", "aa@Linf:0.03", "aa@L2:0.3"]
    linf, l2 = outcome.accuracy("aa", "Linf"), outcome.accuracy("aa", "L2")
    assert outcome.worst("aa") <= min(linf, l2) and outcome.mean("aa") == pytest.approx((linf + l2) / 2)
    assert len(outcome.per_class("aa", "L2")) == 3
    low, high = outcome.interval("aa", "Linf")
    assert 0 <= low <= linf <= high <= 1
    assert (
        outcome.accuracy_by_stage("aa@L2:0.3")[-1] == l2 and len(outcome.accuracy_by_stage("aa@L2:0.3")) == 4
    )
    paired = outcome.mcnemar(other, "aa", "Linf")
    assert len(paired) == COUNT and paired.both + paired.only_self == round(COUNT * linf)
    assert "aa@Linf:0.03" in str(outcome) and "| model |" in outcome.table()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "Linf"}, "norm is Linf and eps is None, expected both or none: no default suits all data"),
        ({"eps": 0.1}, "norm is None and eps is 0.1, expected both or none"),
        ({"norm": "L3", "eps": 0.1}, "unknown norm 'L3'"),
        ({"norm": "Linf", "eps": -0.1}, "the budget is negative"),
        ({"norm": "Linf", "eps": "a lot"}, "expected a number or a fraction such as 8/255, got 'a lot'"),
        ({"attacks": ["aa"]}, "attacks are aa, threats none; expected some, such as Linf:8/255"),
        ({"threats": ["Linf:0.1"], "attacks": ["aaa"]}, 'unknown attack .*did you mean "aa"'),
        ({"probes": ["pgd-20"]}, "expected an attack and a threat"),
        ({"n": 0}, "n: got 0, expected a whole number, 1 or more"),
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number, 1 or more"),
        ({"workers": 0}, "workers: got 0, expected a whole number, 1 or more"),
        ({"workers": -1}, "workers: got -1, expected a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        evaluate(trained_network(), X, Y, **group_options(options))


def test_invalid_choices_are_explained():
    # Without the types, which tests check on every call.
    message = re.escape("budget: got 'nothing', expected one of smoke, quick, standard, full")
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(evaluate)(trained_network(), X, Y, budget="nothing")  # pyright: ignore[reportArgumentType]
    options = EvalOptions()
    object.__setattr__(options, "check", "nothing")
    with pytest.raises(ValueError, match=re.escape("check: got 'nothing', expected one of stop, note, skip")):
        options.__post_init__()


@pytest.mark.usefixtures("brief")
def test_modes_and_weights_are_left_as_they_were():
    model = trained_network().train()
    model.get_submodule("bn").eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    with torch.inference_mode():
        inside = run(model, X, Y, threats=["L2:0.3"], check="note")
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert same(inside, run(trained_network(), X, Y, threats=["L2:0.3"]))  # always in evaluation mode


def linear(classes: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of so many classes, and images of which it gets most right."""
    with Rng(classes).seed_global():
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, classes)).eval()
    x = blobs(train=3, test=10).test.fetch(torch.arange(10))
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % classes
    return model, x, y


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("classes", "eps"), [(2, 0.3), (3, 0.3), (4, 0.5), (10, 0.3), (100, 0.1)])
def test_any_number_of_classes_goes_through_every_stage(classes: int, eps: float):
    model, x, y = linear(classes)
    outcome = evaluate(model, x, y, norm="L2", eps=eps, options=OPTIONS)
    probe = f"aa@L2:{eps}"
    assert outcome.facts["classes"] == classes
    assert outcome.accuracy() == 0.9 and 0 < outcome.accuracy("aa") < 0.9
    after = outcome.accuracy_by_stage(probe)
    assert len(after) == 4 and after == sorted(after, reverse=True)
    assert outcome.predicted[probe].max() < classes
    fooled = outcome.stage[probe] > 0
    assert bool((outcome.distance[probe][fooled] <= eps + 1e-5).all())
