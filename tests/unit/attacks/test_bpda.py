from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from allrounder.attacks import Apgd, Bpda, Pgd, craft
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import loss_grad
from allrounder.data.base import TensorSplit
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.inference import fold as folding
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_pgd import batch, network


def quantise(x):
    return (x * 8).round() / 8


def quantise_in_place(x):
    return x.mul_(8).round_().div_(8)


def quantise_elsewhere(x):
    """As a codec does: outside of torch, so that it cannot be traced."""
    return torch.from_numpy(np.round(x.detach().numpy() * 8) / 8)


def identity(x):
    return x


QUANTISERS = pytest.mark.parametrize("function", [quantise, quantise_in_place, quantise_elsewhere])


@QUANTISERS
def test_bpda_computes_the_function_to_the_last_bit_and_leaves_its_input_alone(function):
    x, _ = batch()
    step, before, expected = Bpda(function, torch.sin), x.clone(), quantise(x)
    assert torch.equal(step(x), expected) and not step(x).requires_grad
    assert torch.equal(step(x.clone().requires_grad_()), expected)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(step(x.clone().requires_grad_()), expected)
    assert torch.equal(x, before)


@QUANTISERS
@pytest.mark.parametrize("backward", [None, torch.sin, nn.Tanh(), lambda x: x**3])
def test_the_gradient_of_bpda_is_that_of_the_substitute(function, backward):
    x, weights = (t.requires_grad_() for t in (batch()[0], batch()[0].flip(0) - 0.5))
    (result,) = torch.autograd.grad((Bpda(function, backward)(x) * weights).sum(), x)
    (expected,) = torch.autograd.grad(((backward or identity)(x) * weights).sum(), x)
    assert torch.equal(result, expected)


@QUANTISERS
def test_a_network_behind_bpda_is_differentiated_where_it_is_evaluated(function):
    body, (x, y) = network(), batch()
    behind = loss_grad(body, quantise(x), y, cross_entropy, None)
    through = loss_grad(nn.Sequential(Bpda(function), body), x, y, cross_entropy, None)
    torch.testing.assert_close(through, behind, rtol=1e-12, atol=0)
    bent = loss_grad(nn.Sequential(Bpda(function, torch.sin), body), x, y, cross_entropy, None)
    torch.testing.assert_close(bent, behind * x.cos(), rtol=1e-12, atol=0)


def test_layers_behind_bpda_may_work_in_place():
    x = torch.tensor([[-1.2, 0.3, 0.7]], requires_grad=True)
    nn.Sequential(Bpda(torch.round), nn.ReLU(inplace=True))(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0, 0.0, 1.0]]


def test_a_network_with_bpda_folds_where_it_can_be_traced_and_is_used_as_it_is_where_not(caplog):
    x, _ = batch()
    for function, foldable in ((quantise, True), (quantise_in_place, True), (quantise_elsewhere, False)):
        for backward in (None, torch.sin, nn.Tanh()):
            model = nn.Sequential(
                Bpda(function, backward), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()
            )
            model = model.double().eval()
            with caplog.at_level(logging.INFO, "allrounder"):
                folded = folding.folded_copy(model, x)
            assert (folded is not None) == foldable
            if folded is not None:
                assert len(folded.pairs) == 1
                torch.testing.assert_close(folded(x), model(x), rtol=0, atol=1e-12)
                ways = (loss_grad(way, x, torch.arange(3), cross_entropy, None) for way in (folded, model))
                torch.testing.assert_close(*ways, rtol=0, atol=1e-12)
    assert len(caplog.records) == 3
    assert all("cannot be traced" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("function", "backward", "said"),
    [
        (lambda x: x[:, :1], None, r"function returned torch.float64 of shape \(3, 1, 6, 6\), backward "),
        (
            lambda x: x.float(),
            None,
            "function returned torch.float32 of shape .* convert one of them, or pass another",
        ),
        (lambda x: x.numpy(), None, "function returned a ndarray, backward torch.float64 of"),
        (quantise, lambda x: x.mean(), r"backward torch.float64 of shape \(\), expected the same"),
    ],
    ids=["shape", "type", "array", "backward"],
)
def test_bpda_refuses_a_backward_of_another_shape_or_type(function, backward, said):
    x, _ = batch()
    with pytest.raises(ValueError, match=rf"Bpda\(function=.*\): .*{said}"):
        Bpda(function, backward)(x.requires_grad_())


def test_bpda_shows_names_and_no_addresses():
    assert str(Bpda(quantise)) == "Bpda(function=quantise)"
    assert str(Bpda(quantise, torch.sin)) == "Bpda(function=quantise, backward=sin)"
    assert "0x" not in str(Bpda(quantise, nn.Tanh())) and "Tanh" in str(Bpda(quantise, nn.Tanh()))


def sums(x):
    """Two classes: the sum of all pixels is above 66 of 108, or not."""
    total = x.flatten(1).sum(1) - 66
    return torch.stack([total, -total], 1)


class Sums(nn.Module):
    def forward(self, x):
        return sums(x)


@QUANTISERS
@pytest.mark.parametrize("attack", [Pgd(steps=5, start="zero"), Apgd(steps=5)], ids=["pgd", "apgd"])
def test_attacks_succeed_through_bpda(function, attack):
    # Every pixel is 4.3 eighths and counts as 4, together 54; from 4.5 on, which is within reach, it counts
    # as 5, together 67.5. So chance, which lifts half of them, does not help.
    x, y = torch.full((2, 3, 6, 6), 4.3 / 8), torch.ones(2, dtype=torch.long)
    threat = Threat.parse("Linf:0.04")
    bare, wrapped = nn.Sequential(Plain(function), Sums()), nn.Sequential(Bpda(function), Sums())
    for model in (bare, wrapped):
        assert torch.equal(model(x).argmax(1), y) and torch.equal(
            model(threat.project(x, x + 1)).argmax(1), 1 - y
        )
    x_adv = craft(wrapped, x, y, attack=attack, threat=threat)
    assert torch.equal(wrapped(x_adv).argmax(1), 1 - y)
    split = TensorSplit(x, y, 2)
    outcome = evaluate(
        wrapped, split, probes=[Probe("hook", attack, threat)], options=EvalOptions(batch_size=2)
    )
    assert outcome.accuracy() == 1 and outcome.accuracy("hook") == 0


def test_without_bpda_the_attack_fails_or_is_refused():
    x, y = torch.full((2, 3, 6, 6), 4.3 / 8), torch.ones(2, dtype=torch.long)
    hidden, attack = nn.Sequential(Plain(quantise), Sums()), Pgd(steps=5, start="zero")
    assert torch.equal(craft(hidden, x, y, attack=attack, threat="Linf:0.04"), x)
    assert torch.equal(craft(hidden, x, y, attack=Apgd(steps=5), threat="Linf:0.04"), x)
    with pytest.raises(
        ValueError, match=r"no gradient reaches the images; .* wrap the steps that need them in Bpda"
    ):
        craft(nn.Sequential(Plain(quantise_elsewhere), Sums()), x, y, attack=attack, threat="Linf:0.04")


class Plain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x.clone())
