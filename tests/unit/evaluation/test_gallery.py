"""Galleries: images of the kinds that are stated, and what is shown is what the networks do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.errors import InputError
from allrounder.evaluation.evaluate import EvalOptions, evaluate, select_rows
from allrounder.evaluation.gallery import (
    MAX_ITEMS,
    EvaluatedNetwork,
    choose_images,
    make_gallery,
    match_rows,
    round_perturbation,
)
from allrounder.nn.gradcam import grad_cam
from allrounder.report.gallery import Gallery, GalleryItem, GalleryView
from allrounder.report.outcome import NATURAL
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.support.networks import Tiny, blobs

THREATS = ("Linf:0.05", "L2:0.3")
NAMES = ("first", "second")
IMAGES = 90


class Flat(Tiny):
    """The same network without a module that has feature maps."""

    def __init__(self) -> None:
        super().__init__()
        del self.conv, self.bn
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


@cache
def data() -> Data:
    return blobs(train=60, test=120)


def train(kind: type[Tiny], seed: int, steps: int) -> nn.Module:
    with Rng(seed).seed_global():
        model = kind()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    split = data().train
    for _ in range(steps):
        loss = F.cross_entropy(model(split.fetch(torch.arange(60))), split.labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return model.eval()


@cache
def networks(kind: type[Tiny] = Tiny) -> tuple[EvaluatedNetwork, EvaluatedNetwork]:
    first, second = (
        EvaluatedNetwork(
            name,
            model := train(kind, seed, steps),
            evaluate(
                model, data(), threats=THREATS, attacks="pgd-3", n=IMAGES, options=EvalOptions(check="note")
            ),
        )
        for name, seed, steps in zip(NAMES, (1, 2), (5, 8), strict=True)
    )
    return first, second


@cache
def gallery() -> Gallery:
    return make_gallery(*networks(), data(), "pgd-3", attack="pgd-3")


def forward(network: EvaluatedNetwork, image: np.ndarray) -> Tensor:
    x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        return network.model(x)[0].double().softmax(0)


def pairs() -> list[tuple[GalleryItem, GalleryView, EvaluatedNetwork]]:
    return [(item, view, networks()[k]) for item in gallery().items for k, view in enumerate(item.views)]


def test_there_are_images_of_several_kinds_and_few_of_a_class():
    items = gallery().items
    assert 6 <= len(items) <= MAX_ITEMS
    assert len({item.kind for item in items}) >= 4 and {item.threat for item in items} == set(THREATS)
    assert max(Counter(item.label for item in items).values()) <= MAX_ITEMS // 3
    assert len({item.position for item in items}) == len(items), "no image is shown twice"
    assert all([view.row for view in item.views] == list(NAMES) for item in items)


def test_images_are_of_the_kind_that_is_stated():
    seen = Counter[str]()
    for item in gallery().items:
        right, wrong = NAMES if "first is right and second is wrong" in item.kind else NAMES[::-1]
        views = {view.row: view for view in item.views}
        under_attack = item.kind.startswith(f"Under pgd-3 ({item.threat})")
        assert under_attack or item.kind.startswith("Without an attack")
        if under_attack:
            assert views[right].natural.is_correct and views[wrong].natural.is_correct
            assert views[right].adversarial.is_correct and not views[wrong].adversarial.is_correct
        else:
            assert views[right].natural.is_correct and not views[wrong].natural.is_correct
        seen[item.kind] += 1
    assert max(seen.values()) <= 2


def test_images_are_those_of_the_outcomes():
    rows = select_rows(data().test, IMAGES, 0)
    for item in gallery().items:
        (position,) = np.flatnonzero(rows.numpy() == item.position).tolist()
        stored = data().test.fetch(torch.tensor([item.position]))[0].permute(1, 2, 0).numpy()
        assert np.abs(item.image / 255 - stored).max() <= 0.5001 / 255
        assert item.label == int(data().test.labels[item.position])
        assert item.class_name == data().classes[item.label]
        for network, view in zip(networks(), item.views, strict=True):
            predicted = data().classes[network.outcome.predicted[NATURAL][position]]
            assert view.natural.name == predicted


def test_predictions_are_those_of_the_pixels_that_are_shown():
    for item, view, network in pairs():
        for image, prediction in ((item.image, view.natural), (view.adversarial_image, view.adversarial)):
            probabilities = forward(network, image)
            k = int(probabilities.argmax())
            assert prediction.name == data().classes[k] and prediction.is_correct == (k == item.label)
            assert prediction.confidence == pytest.approx(float(probabilities[k]), abs=1e-6)


def test_adversarial_images_stay_in_the_ball_and_the_box():
    for item, view, _ in pairs():
        threat = Threat.parse(item.threat)
        difference = (view.adversarial_image.astype(np.float64) - item.image) / 255
        assert view.perturbation == pytest.approx(difference, abs=1e-12)
        length = threat.norm.length(torch.from_numpy(view.perturbation)[None])
        assert 0 < float(length) <= threat.eps + 1e-6
        shown = item.image / 255 + view.perturbation
        assert shown.min() >= -1e-12 and shown.max() <= 1 + 1e-12


def test_maps_are_those_of_grad_cam():
    for item, view, network in pairs()[:4]:
        for image, attention in (
            (item.image, view.natural_map),
            (view.adversarial_image, view.adversarial_map),
        ):
            x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 255
            assert attention == pytest.approx(grad_cam(network.model, x)[0].double().numpy(), abs=1e-4)


def test_a_network_without_feature_maps_has_no_maps():
    shown = make_gallery(*networks(Flat), data(), "pgd-3", attack="pgd-3")
    assert shown.items
    assert all(
        view.natural_map is view.adversarial_map is None for item in shown.items for view in item.views
    )


def test_a_gallery_is_deterministic_and_leaves_networks_as_they_were():
    model = networks()[0].model.train()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    again = make_gallery(*networks(), data(), "pgd-3", attack="pgd-3")
    assert model.training and all(map(torch.equal, before, model.state_dict().values()))
    model.eval()
    assert again.about == gallery().about
    assert [item.position for item in again.items] == [item.position for item in gallery().items]
    for one, two in zip(again.items, gallery().items, strict=True):
        for a, b in zip(one.views, two.views, strict=True):
            assert a.natural == b.natural and a.adversarial == b.adversarial
            assert np.array_equal(a.adversarial_image, b.adversarial_image)


def test_the_text_claims_no_robustness():
    about = gallery().about
    assert "one of first and second" in about and "pgd-3 (Linf:0.05, L2:0.3)" in about
    assert about.endswith("another attack may fool it where this one does not.")


def test_different_images_are_refused():
    first, second = networks()
    fewer = evaluate(
        second.model, data(), threats=THREATS, attacks="pgd-3", n=30, options=EvalOptions(check="skip")
    )
    with pytest.raises(InputError, match="first and second were evaluated on different images"):
        make_gallery(first, replace(second, outcome=fewer), data(), "pgd-3")
    with pytest.raises(InputError, match="the outcome is about other images than those of the data"):
        make_gallery(first, second, blobs(train=60, test=117), "pgd-3")
    with pytest.raises(InputError, match="no probe of aa in common"):
        make_gallery(first, second, data(), "aa")


@pytest.mark.parametrize("changed", ["labels", "rows", "seed", "images"])
def test_an_outcome_of_another_selection_is_refused(changed: str):
    outcome = networks()[0].outcome
    assert torch.equal(match_rows(data().test, outcome), select_rows(data().test, IMAGES, 0))
    facts = {key: value for key, value in outcome.facts.items() if key != "data"}
    if changed == "labels":
        outcome = replace(outcome, label=(outcome.label + 1) % 3, facts={"seed": 0})
    elif changed == "images":
        labels = np.tile(outcome.label, 2)
        outcome = replace(
            outcome, label=labels, predicted={}, distance={}, stage={}, confidence=None, facts={}
        )
    else:
        outcome = replace(outcome, facts={**facts, changed: "0" if changed == "rows" else 1})
    with pytest.raises(InputError, match="no such selection of images"):
        match_rows(data().test, outcome)


def test_images_are_the_first_of_classes_that_were_used_least():
    label = np.array([0, 0, 0, 1, 1, 2, 0, 2])
    positions = np.array([0, 1, 2, 3, 4, 5, 6, 7])
    assert choose_images(positions, label, Counter(), 2).tolist() == [0, 3, 5, 1, 4, 7]
    assert choose_images(positions, label, Counter({0: 1, 1: 2}), 2).tolist() == [5, 0, 7]
    assert choose_images(positions[:0], label, Counter(), 2).tolist() == []


def test_perturbations_are_rounded_towards_the_image():
    natural = torch.tensor([0, 255, 100, 100, 100, 100], dtype=torch.uint8)
    perturbation = torch.tensor([3.7, -3.7, 7.99999, -7.99999, 0.9, 0.0]) / 255
    assert round_perturbation(natural, perturbation).tolist() == [3, 252, 108, 92, 100, 100]
