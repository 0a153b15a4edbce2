"""Attacks of a training that asks for it run on a copy with faster convolutions."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks.base import perturb
from allrounder.attacks.pgd import Pgd
from allrounder.inference.attack_view import attack_view
from allrounder.inference.fast_conv import StemConv
from allrounder.inference.fast_crafting import craft_with_fast_convs, describe_fast_convs
from allrounder.inference.fold import Folded, copy_sharing_fold
from allrounder.inference.winograd_layer import MKL_COSTS, WinogradConv
from allrounder.inference.winograd_onednn import has_access
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.support.networks import Broad

X = Rng(0).uniform(torch.empty(4, 1, 8, 8))


def make(fill: Callable[[Tensor], object] = lambda tensor: None, *, fast: bool = True) -> nn.Module:
    with Rng(0).seed_global():
        model = Broad().eval()
    for parameter in model.parameters():
        fill(parameter.data)
    if fast:
        craft_with_fast_convs(model)
    return model


def view_of(model: nn.Module) -> Folded:
    with attack_view(model, X, "eval") as view:
        assert isinstance(view, Folded)
        return view


def kinds(folded: Folded) -> set[type[StemConv] | type[WinogradConv]]:
    return {StemConv, WinogradConv} & set(map(type, folded.network.modules()))


def use_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers compute their products in a library on every machine."""
    if library == "oneDNN" and not has_access():
        pytest.skip("this version of torch gives no access to oneDNN")
    monkeypatch.setattr("allrounder.inference.winograd_layer.is_onednn_faster", lambda: library == "oneDNN")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    # Layers of 64 channels pay off with these costs.
    monkeypatch.setattr("allrounder.inference.winograd_layer.ONEDNN_COSTS", MKL_COSTS)


def test_only_models_that_ask_for_it_get_faster_layers():
    assert kinds(view_of(make())) == {StemConv, WinogradConv}
    assert not kinds(view_of(make(fast=False)))
    model = make(fast=False)
    copied = copy_sharing_fold(model)
    craft_with_fast_convs(copied)
    assert kinds(view_of(copied)) and not kinds(view_of(model)), "validations stay plain"
    assert view_of(copied) is view_of(copied)


def test_values_and_gradients_follow_the_weights():
    model = make()
    for _ in range(3):
        with attack_view(model, X, "eval") as view:
            results: list[tuple[Tensor, Tensor]] = []
            for network in (model, view):
                x = X.clone().requires_grad_()
                logits = network(x)
                results.append((logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0]))
        for expected, got in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(Rng(1).normal(parameter), alpha=0.05)


def test_autocast_of_the_caller_uses_plain_layers():
    model = make()
    with torch.autocast("cpu", torch.float16):
        assert not kinds(view_of(model))
    assert kinds(view_of(model)) == {StemConv, WinogradConv}


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e10])
def test_the_choice_does_not_depend_on_the_weights(value: float):
    assert kinds(view_of(make(lambda tensor: tensor.fill_(value)))) == {StemConv, WinogradConv}


@pytest.mark.parametrize(
    "use", [lambda model: describe_fast_convs(model, X), lambda model: view_of(model)(X)]
)
@pytest.mark.parametrize("library", ["MKL", "oneDNN"])
def test_layers_follow_the_weights_after_a_use_in_inference_mode(
    use: Callable[[nn.Module], object], library: str, monkeypatch: pytest.MonkeyPatch
):
    use_library(library, monkeypatch)
    model = make()
    with torch.inference_mode():
        use(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    y, threat = torch.tensor([0, 1, 2, 1]), Threat.parse("Linf:8/255")
    x = perturb(Pgd(steps=1), model, X, y, threat, Rng(0)).x
    scaled = make(lambda tensor: tensor.mul_(1.5))
    assert torch.equal(x, perturb(Pgd(steps=1), scaled, X, y, threat, Rng(0)).x)


def test_layers_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    convolve = WinogradConv.convolve
    monkeypatch.setattr(WinogradConv, "convolve", lambda layer, x: 1.1 * convolve(layer, x))
    with caplog.at_level(logging.INFO, "allrounder"):
        assert not kinds(view_of(make()))
    assert "attacks use plain convolutions" in caplog.text


@pytest.mark.parametrize("library", ["MKL", "oneDNN"])
def test_the_faster_layers_are_listed(library: str, monkeypatch: pytest.MonkeyPatch):
    use_library(library, monkeypatch)
    layers = {
        "conv1": "input gradient as a matrix product",
        "conv2": f"Winograd F(4x4, 3x3) in {library}",
    }
    assert describe_fast_convs(make(fast=False), X) == layers
    narrow = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten())
    assert describe_fast_convs(narrow, torch.zeros(1, 4, 8, 8)) == {}
