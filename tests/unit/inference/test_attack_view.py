from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from allrounder.attacks import Pgd
from allrounder.inference import fold as folding
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_perturb import Careless, batch, go, network, odd_network, same, state


def raises(x):
    raise RuntimeError("stop")


@pytest.mark.parametrize("norm_layers", ["eval", "train", "train_frozen"])
def test_a_failing_attack_leaves_the_network_as_it_was(norm_layers):
    model = odd_network()
    before = state(model)
    with pytest.raises(RuntimeError, match="stop"):
        go(Careless(raises), model, norm_layers=norm_layers)
    after = state(model)
    if norm_layers == "train":  # the one thing that mode promises to change
        before[3].update({name: tensor for name, tensor in after[3].items() if name.startswith("1.")})
    assert same(before, after)


@pytest.mark.parametrize("norm_layers", ["eval", "train", "train_frozen"])
def test_parameter_gradients_are_not_changed(norm_layers):
    model = odd_network()
    before = state(model)
    go(Pgd(steps=2, loss="kl"), model, norm_layers=norm_layers)
    assert before[:2] == state(model)[:2]
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    kept = grads.pop("5.weight")
    assert kept is not None and torch.equal(kept, torch.ones(4, 64)) and set(grads.values()) == {None}


def test_running_statistics_change_only_in_train():
    moved = {}
    for norm_layers in ("eval", "train", "train_frozen"):
        model = network()
        before = state(model)
        go(model=model, norm_layers=norm_layers)
        moved[norm_layers] = not same(before, state(model))
    assert moved == {"eval": False, "train": True, "train_frozen": False}


def test_replaced_buffers_are_restored():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return x.flatten(1)

    model = Replacing()
    seen = model.seen
    go(model=model, norm_layers="train_frozen")
    assert model.seen is seen and seen == 0


def test_the_attack_runs_in_the_selected_mode():
    seen = []

    class Watching(nn.Module):
        def forward(self, x):
            seen.append(self.training)
            return x.flatten(1)

    for norm_layers in ("eval", "train", "train_frozen"):
        for start in (True, False):
            go(Pgd(steps=1), Watching().train(start), norm_layers=norm_layers)
    assert seen[-6:] == [False, False, True, True, True, True]


def test_eval_crafts_on_the_folded_copy_where_there_is_one(monkeypatch):
    asked, folded = [], partial(nn.functional.linear, weight=torch.ones(4, 6))

    def frozen(model, example):
        asked.append((model.training, any(p.requires_grad for p in model.parameters()), example is not None))
        return lambda x: folded(x.mean((1, 2)))

    monkeypatch.setattr(folding, "folded_copy", frozen)
    model = network()
    on_copy = go(model=model).x
    assert asked == [(False, False, True)]
    assert torch.equal(on_copy, go(model=lambda x: folded(x.mean((1, 2)))).x)
    for norm_layers in ("train", "train_frozen"):
        go(model=model, norm_layers=norm_layers)
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["Linf:8/255", "L2:1/2", "L1:3"])
def test_the_folded_copy_leads_to_the_same_images(text, monkeypatch):
    x, _ = batch()
    threat, attack, model = Threat.parse(text), Pgd(steps=5), network().double()
    assert folding.folded_copy(model, x.double()) is not None
    on_copy = go(attack, model, x.double(), threat=threat).x
    monkeypatch.setattr(folding, "folded_copy", lambda model, example: None)
    torch.testing.assert_close(on_copy, go(attack, model, x.double(), threat=threat).x, rtol=0, atol=1e-9)


def test_eval_falls_back_to_the_network_itself(monkeypatch):
    monkeypatch.setattr(folding, "folded_copy", lambda model, example: None)
    model = network()
    assert torch.equal(go(model=model).x, go(model=network().eval().forward).x)
    assert model.training


# Where it is called


def test_crafting_works_under_no_grad_and_inference_mode():
    expected = go().x
    with torch.no_grad():
        assert torch.equal(go().x, expected)
        assert not torch.is_grad_enabled()
    model = network()
    with torch.inference_mode():
        assert torch.equal(go(model=model).x, expected)
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize("norm_layers", ["eval", "train", "train_frozen"])
def test_networks_that_draw_random_numbers_get_addressed_ones(norm_layers):
    before = torch.get_rng_state()
    first = go(norm_layers=norm_layers).x
    torch.rand(7)
    assert torch.equal(go(norm_layers=norm_layers).x, first)
    torch.set_rng_state(before)
    go(norm_layers=norm_layers)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_outer_graph_survives_crafting():
    model, (x, y) = network(), batch()
    model.eval()
    loss = nn.functional.cross_entropy(model(x), y)
    go(model=model)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
