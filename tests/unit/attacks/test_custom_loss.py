from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
import torch
from torch import nn

from allrounder.attacks import ATTACKS, Apgd, CustomLoss, Pgd, perturb
from allrounder.attacks.losses import cross_entropy, dlr, kl_from_natural, margin
from allrounder.attacks.pgd import loss_grad
from allrounder.config.decode import json_schema
from allrounder.config.fields import OneOf
from allrounder.errors import RecipeError, ThreatError
from allrounder.inference import fold as folding
from allrounder.objectives import Adversarial
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.unit.attacks.test_pgd import batch, network

TEXTS = ("Linf:1/5", "L2:1/2", "L1:3")
THREATS = pytest.mark.parametrize("threat", [Threat.parse(t) for t in TEXTS], ids=str)
LINF = Threat.parse("Linf:8/255")
GAP = CustomLoss(name="gap", function=margin)


class Noisy(nn.Module):
    """Random in every pass, also in eval mode."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x):
        return self.body(x + 0.3 * torch.randn(x.shape, dtype=x.dtype))


# Custom losses


@THREATS
@pytest.mark.parametrize(
    ("named", "custom"),
    [
        (Pgd(steps=4), Pgd(steps=4, loss=CustomLoss(name="a", function=cross_entropy))),
        (Pgd(steps=4, loss="margin"), Pgd(steps=4, loss=GAP)),
        (
            Pgd(steps=4, loss="kl"),
            Pgd(steps=4, loss=CustomLoss(name="a", function=kl_from_natural, needs_natural=True)),
        ),
        (Apgd(steps=8), Apgd(steps=8, surrogate=CustomLoss(name="a", function=cross_entropy))),
        (Apgd(steps=8, surrogate="dlr"), Apgd(steps=8, surrogate=CustomLoss(name="a", function=dlr))),
    ],
    ids=["pgd-ce", "pgd-margin", "pgd-kl", "apgd-ce", "apgd-dlr"],
)
def test_a_custom_loss_gives_the_images_and_passes_of_the_same_loss_by_name(named, custom, threat):
    model, (x, _) = network(), batch()
    y = model(x).argmax(1)
    ours, theirs = (perturb(attack, model, x, y, threat, Rng(0)) for attack in (custom, named))
    assert torch.equal(ours.x, theirs.x) and ours.passes == theirs.passes
    assert not torch.equal(ours.x, x)


def test_the_natural_logits_are_given_to_a_loss_that_asks_for_them_alone():
    model, (x, y), seen = network(), batch(), []

    def watching(logits, y, natural):
        seen.append(natural)
        return cross_entropy(logits, y)

    for needs in (True, False):
        loss = CustomLoss(name="watching", function=watching, needs_natural=needs)
        perturb(Pgd(steps=1, loss=loss), model, x, y, LINF, Rng(0))
    perturb(Apgd(steps=1, surrogate=loss), model, x, model(x).argmax(1), LINF, Rng(0))
    torch.testing.assert_close(seen[0], model(x).detach(), rtol=0, atol=1e-12)
    assert not seen[0].requires_grad
    assert len(seen) > 2 and set(seen[1:]) == {None}


def test_a_custom_loss_is_written_by_its_name_alone():
    here, there = (Apgd(surrogate=CustomLoss(name="a", function=lambda z, y, n: z)) for _ in range(2))
    assert str(here) == str(there) == str(Apgd()).replace("'ce'", "CustomLoss(name='a')")
    assert here != there and here == replace(here) and hash(here) == hash(replace(here))
    assert here.loss_name(10) == "a"
    assert str(Pgd(loss=GAP)) == str(Pgd()).replace("'ce'", "CustomLoss(name='gap')")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z, y, n: cross_entropy(z, y).mean(), r"returned torch.float64 of shape \(\), expected "),
        (
            lambda z, y, n: z,
            r"returned torch.float64 of shape \(3, 4\), expected torch.float64 of shape \(3,\);",
        ),
        (lambda z, y, n: cross_entropy(z, y).float(), r"returned torch.float32 of shape \(3,\), expected "),
        (lambda z, y, n: z.argmax(1) != y, r"returned torch.bool of shape \(3,\), expected "),
        (lambda z, y, n: None, "returned a NoneType, expected .* return one number per example"),
        (
            lambda z, y, n: cross_entropy(z.detach(), y),
            "returned no gradient, expected a differentiable one; remove ",
        ),
    ],
    ids=["mean", "matrix", "type", "verdicts", "nothing", "detached"],
)
@pytest.mark.parametrize("make", [lambda loss: Pgd(loss=loss), lambda loss: Apgd(surrogate=loss)])
def test_custom_loss_without_gradient_is_refused(function, message, make):
    model, (x, _) = network(), batch()
    attack = make(CustomLoss(name="odd", function=function))
    with pytest.raises(ValueError, match=f"the loss odd {message}"):
        perturb(attack, model, x, model(x).argmax(1), LINF, Rng(0))


def test_a_custom_loss_that_is_not_finite_is_not_hidden():
    model, (x, _) = network(), batch()
    loss = CustomLoss(name="nan", function=lambda z, y, n: cross_entropy(z, y) * float("nan"))
    for attack in (Pgd(loss=loss), Apgd(surrogate=loss)):
        with pytest.raises(ThreatError, match=r"NaN|not finite"):
            perturb(attack, model, x, model(x).argmax(1), LINF, Rng(0))


def test_apgd_refuses_targets_and_natural_logits_for_a_custom_loss():
    with pytest.raises(ValueError, match="the loss gap has no targeted form, got targets = 9; set targets"):
        Apgd(surrogate=GAP, targets=9)
    with pytest.raises(ValueError, match="the loss gap needs natural logits; use it with Pgd"):
        Apgd(surrogate=replace(GAP, needs_natural=True))


@pytest.mark.parametrize(
    "fields", [{"name": ""}, {"name": "a/b"}, {"name": "a b"}, {"function": "ce"}], ids=str
)
def test_a_custom_loss_needs_a_name_for_a_file_and_a_function(fields):
    with pytest.raises(ValueError):
        CustomLoss(**{"name": "a", "function": margin} | fields)


def test_custom_loss_in_a_recipe_raises_an_error():
    recipe = Recipe.load("embedded/at-linf")
    attack = Pgd(loss=GAP)
    (task,) = recipe.tasks
    held = replace(recipe, tasks=(replace(task, objective=Adversarial(threat=LINF, attack=attack)),))
    message = (
        "^a recipe or file cannot hold the function of the loss gap, expected the name of a built-in loss; "
    )
    for dump in (held.dumps, held.fingerprint, lambda: OneOf(lambda: ATTACKS).encode(attack)):
        with pytest.raises(ValueError, match=message):
            dump()


@pytest.mark.parametrize(("written", "got"), [("{name='gap'}", "a table"), ("gap", "'gap'")])
def test_recipes_and_their_schema_know_the_names_alone(written, got):
    expected = "expected 'ce', 'margin', 'cw', 'kl', 'lse' or 'lse-drift'"
    with pytest.raises(RecipeError, match=rf"task\.linf\.objective\.attack\.loss: {expected}, got {got}$"):
        Recipe.load("embedded/at-linf", [f"task.linf.objective.attack.loss={written}"])
    loss = json_schema(Recipe)["$defs"]["allrounder.attacks.pgd.Pgd.pgd"]["properties"]["loss"]
    assert loss["enum"] == ["ce", "margin", "cw", "kl", "lse", "lse-drift"] and "anyOf" not in loss
    dumped = tomllib.loads(Recipe.load("embedded/at-linf").dumps())["task"][0]["objective"]["attack"]
    assert dumped["loss"] == "ce" and dumped["eot"] == 1


# The mean over a network's randomness


def test_the_gradient_of_eot_is_the_mean_of_single_ones_in_the_order_of_the_draws():
    model, (x, y) = Noisy(), batch()
    with Rng(7).seed_global():
        singles = [loss_grad(model, x, y, cross_entropy, None) for _ in range(5)]
    with Rng(7).seed_global():
        mean = loss_grad(model, x, y, cross_entropy, None, 5)
    torch.testing.assert_close(mean, torch.stack(singles).mean(0), rtol=1e-12, atol=0)
    assert not torch.allclose(singles[0], singles[1])
    with Rng(7).seed_global():
        assert torch.equal(loss_grad(model, x, y, cross_entropy, None, 1), singles[0])


@THREATS
def test_a_step_of_eot_follows_the_mean_gradient(threat):
    model, (x, y) = Noisy(), batch()
    result = perturb(Pgd(steps=1, eot=4, start="zero"), model, x, y, threat, Rng(3)).x
    with Rng(3).fold_in("ambient").seed_global():
        g = torch.stack([loss_grad(model, x, y, cross_entropy, None) for _ in range(4)]).mean(0)
    expected = threat.project(x, x + 0.25 * threat.eps * threat.norm.ascend(g))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@THREATS
def test_eot_changes_nothing_for_a_network_that_draws_nothing(threat):
    model, (x, y) = network(), batch()
    one, four = (perturb(Pgd(steps=5, eot=eot), model, x, y, threat, Rng(0)).x for eot in (1, 4))
    torch.testing.assert_close(one, four, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("loss", "more"), [("ce", 0), ("kl", 1)])
def test_the_passes_of_eot_are_counted(loss, more, monkeypatch):
    monkeypatch.setattr(folding, "folded_copy", lambda model, example: None)
    model, (x, y), forwards, backwards = Noisy(), batch(), [], []

    def count(module, inputs, logits):
        forwards.append(1)
        if logits.requires_grad:
            logits.register_hook(lambda g: backwards.append(1))

    model.register_forward_hook(count)
    result = perturb(Pgd(steps=3, eot=4, loss=loss), model, x, y, LINF, Rng(0))
    assert result.passes == Passes(12 + more, 12) == Passes(len(forwards), len(backwards))


def test_eot_on_a_random_network_repeats_and_leaves_ambient_randomness_alone():
    model, (x, y), before = Noisy(), batch(), torch.get_rng_state()
    first, again, other = (
        perturb(Pgd(steps=2, eot=3, start="zero"), model, x, y, Threat.parse("L2:1/2"), Rng(seed)).x
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
