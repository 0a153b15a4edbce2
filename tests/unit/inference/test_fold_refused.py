from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

from allrounder.inference import fold as folding
from allrounder.inference.fold import folded_copy
from tests.unit.inference.test_fold import Net, Switching, assert_agrees, images


class Branching(Net):
    def forward(self, x):
        return super().forward(x if x.mean() > 0 else -x)


class Noisy(Net):
    """Draws in memory order, so that another layout means other noise."""

    def features(self, x):
        return super().features(x + 0.1 * torch.randn_like(x))


class Detached(Net):
    def features(self, x):
        with torch.no_grad():
            x = 2 * x
        return super().features(x + 1)


class HalfDetached(Net):
    def features(self, x):
        with torch.no_grad():
            half = x / 2
        return super().features(half + x)


class OwnConstant(Net):
    def features(self, x):
        return super().features(x - torch.tensor([0.1, 0.2, 0.3])[:, None, None])


def quantised():
    model = Net()
    model.linear.__class__ = type(
        "Linear", (nn.Linear,), {"__module__": "torch.ao.nn.quantized.modules.linear"}
    )
    return model


class Odd(nn.Parameter):
    """Stands for the tensors of other packages."""


def odd_tensor():
    model = Net()
    model.linear.weight = Odd(model.linear.weight.detach())
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Branching, "cannot be traced: TraceError"),
        (Detached, "cannot be traced"),
        (HalfDetached, "input gradients and those of the copy differ"),
        (OwnConstant, "creates tensors, which a trace would keep"),
        (lambda: Net(norm=nn.BatchNorm2d(6, track_running_stats=False)), "norm keeps no running statistics"),
        (quantised, "linear is quantised"),
        (odd_tensor, "linear.weight is a Odd, not a plain tensor"),
        (Noisy, "logits and those of the copy differ"),
        (lambda: Net(conv=nn.Conv2d(5, 6, 3)), "cannot be traced: RuntimeError"),
    ],
)
def test_unfoldable_networks_are_used_directly_and_logged_once(make, reason, caplog):
    model = make()
    with caplog.at_level(logging.INFO, "allrounder"):
        assert [folded_copy(model, images(1)) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    assert caplog.records[0].name == "allrounder"
    assert reason in caplog.text


def test_a_model_is_not_folded_while_it_has_hooks(caplog):
    model = Net()
    assert folded_copy(model, images(1)) is not None
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        hook = getattr(model.conv, register)(lambda *_: None)
        with caplog.at_level(logging.INFO, "allrounder"):
            assert folded_copy(model, images(1)) is None
        hook.remove()
        assert_agrees(model, folded_copy(model, images(1)))
    assert len(caplog.records) == 1
    assert folding.CACHED_FOLDS[model].traces == 1


def test_a_wrong_fold_is_detected_in_a_new_network(monkeypatch, caplog):
    right = folding._fold_batchnorm_

    def forgets_the_mean(target, layer, norm):
        norm = copy.deepcopy(norm)
        norm.running_mean.zero_()
        right(target, layer, norm)

    monkeypatch.setattr(folding, "_fold_batchnorm_", forgets_the_mean)
    with caplog.at_level(logging.INFO, "allrounder"):
        assert folded_copy(Net(), images(1)) is None
    assert "logits and those of the copy differ" in caplog.text


def test_a_wrong_layer_is_detected_behind_zero_weights(monkeypatch):
    model = Net()
    nn.init.zeros_(model.linear.weight)
    monkeypatch.setattr(folding, "_fold_batchnorm_", lambda target, layer, norm: None)
    assert folded_copy(model, images(1)) is None


def test_tracing_a_network_that_draws_leaves_the_generator_alone():
    model, state = Noisy(), torch.get_rng_state()
    folded_copy(model, images(1))
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_that_keeps_changing_is_not_folded(caplog):
    model = Switching()
    with caplog.at_level(logging.INFO, "allrounder"):
        copies = []
        for t in range(12):
            model.which = "norm" if t % 2 else "other"
            copies.append(folded_copy(model, images(1)))
    assert copies[folding.MAX_TRACES] is None
    assert None not in copies[: folding.MAX_TRACES]
    assert_agrees(model, copies[-1])
    assert len(caplog.records) == 1
