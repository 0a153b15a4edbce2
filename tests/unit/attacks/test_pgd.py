from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from allrounder.attacks import ATTACKS, Cw, Mim, Pgd, Restarts, craft, parse_attack, perturb
from allrounder.attacks.losses import LOSSES, cross_entropy
from allrounder.attacks.pgd import initial_perturbation, pgd_loop
from allrounder.config.fields import OneOf
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.reference import attacks as twin

THREATS = pytest.mark.parametrize(
    "threat", [Threat.parse(t) for t in ("Linf:8/255", "L2:1/2", "L1:3")], ids=str
)


def network(classes=4):
    """Smooth, so that no gradient is close to a kink; in float64, to be compared with twins."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, classes)
        return nn.Sequential(*layers).double()


def batch(n=3, classes=4):
    x = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.arange(n) % classes


# The loop and its twins


def iterates(model, x, y, threat, start, steps, **kwargs):
    twins = [
        twin.climb(model, a.numpy(), int(b), str(threat.norm), threat.eps, d.numpy(), steps=steps, **kwargs)
        for a, b, d in zip(x, y, start, strict=True)
    ]
    return [torch.from_numpy(np.stack([path[t] for path in twins])) for t in range(steps + 1)]


@THREATS
@pytest.mark.parametrize("loss", list(LOSSES))
def test_pgd_equals_its_twin_step_by_step(threat, loss):
    model, (x, y) = network(), batch()
    start = threat.norm.sample(x, threat.eps, Rng(0).fold_in("start"))
    path = iterates(model, x, y, threat, start, 4, step=0.25, loss=loss)
    for steps in range(1, 5):
        result = Pgd(steps=steps, loss=loss).run(model, x, y, threat, Rng(0))
        torch.testing.assert_close(result.x, path[steps], rtol=0, atol=1e-10)


@THREATS
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_mim_equals_its_twin_step_by_step(threat, decay):
    model, (x, y) = network(), batch()
    start = threat.norm.sample(x, threat.eps, Rng(0).fold_in("start"))
    path = iterates(model, x, y, threat, start, 4, step=0.3, decay=decay)
    for steps in range(1, 5):
        result = Mim(steps=steps, step=0.3, decay=decay).run(model, x, y, threat, Rng(0))
        torch.testing.assert_close(result.x, path[steps], rtol=0, atol=1e-10)


@THREATS
@pytest.mark.parametrize("kappa", [50.0, 0.05])
def test_cw_equals_its_twin_step_by_step(threat, kappa):
    model, (x, y) = network(), batch()
    start = threat.norm.sample(x, threat.eps, Rng(0).fold_in("start"))
    path = iterates(model, x, y, threat, start, 4, step=0.25, loss="cw", kappa=kappa)
    for steps in range(1, 5):
        result = Cw(steps=steps, kappa=kappa).run(model, x, y, threat, Rng(0))
        torch.testing.assert_close(result.x, path[steps], rtol=0, atol=1e-10)


def test_mim_without_memory_is_pgd():
    model, (x, y) = network(), batch()
    threat = Threat.parse("L2:1/2")
    result = [a.run(model, x, y, threat, Rng(0)).x for a in (Mim(steps=5, decay=0.0), Pgd(steps=5))]
    torch.testing.assert_close(*result)


@THREATS
def test_starts_have_the_documented_length(threat):
    x, _ = batch()
    length = {
        s: threat.norm.length(initial_perturbation(s, x, threat, Rng(0)))
        for s in ("random", "boundary", "zero")
    }
    assert (length["random"] <= threat.eps).all() and (length["random"] > 0).all()
    torch.testing.assert_close(length["boundary"], torch.full((3,), threat.eps, dtype=x.dtype))
    assert (length["zero"] == 0).all()
    gaussian = initial_perturbation("gaussian", x, threat, Rng(0))
    assert 0.0007 < gaussian.std() < 0.0013


def test_kl_from_the_image_itself_is_refused_because_it_would_never_move():
    with pytest.raises(ValueError, match="flat at the image itself"):
        Pgd(loss="kl", start="zero")


def test_pgd_counts_its_passes_and_asks_for_natural_logits_only_when_needed():
    (x, y), threat, model, calls = batch(), Threat.parse("Linf:8/255"), network(), []

    def counted(x):
        calls.append(torch.is_grad_enabled())
        return model(x)

    assert perturb(Pgd(steps=3), counted, x, y, threat, Rng(0)).passes == Passes(3, 3)
    assert calls == [True] * 3
    calls.clear()
    result = perturb(Pgd(steps=3, loss="kl"), counted, x, y, threat, Rng(0))
    assert result.passes == Passes(4, 3) and calls == [False, True, True, True]
    assert result.loss is None and result.fooled is None


@THREATS
def test_a_flat_loss_keeps_the_start(threat):
    x, y = batch()

    def flat(x):
        return x.flatten(1)[:, :4] * 0

    for attack in (Pgd(steps=3), Mim(steps=3), Cw(steps=3)):
        result = perturb(attack, flat, x, y, threat, Rng(0)).x
        start = threat.project(x, x + threat.norm.sample(x, threat.eps, Rng(0).fold_in("start")))
        torch.testing.assert_close(result, start, rtol=0, atol=1e-12)


def test_a_network_without_a_gradient_is_refused():
    x, y = batch()
    blind = torch.no_grad()(network())
    constant = nn.Parameter(torch.zeros(1, 4, dtype=torch.float64))
    for model in (blind, lambda x: constant.expand(len(x), 4)):
        with pytest.raises(ValueError, match="no gradient reaches the images"):
            craft(model, x, y, threat="Linf:8/255")


@pytest.mark.parametrize(
    "bad",
    [{"steps": 0}, {"steps": 2.5}, {"step": 0}, {"step": -1}, {"step": float("nan")}, {"loss": "x"}],
    ids=str,
)
def test_fields_are_checked(bad):
    with pytest.raises(ValueError):
        Pgd(**bad)


def test_a_step_may_be_written_as_a_fraction():
    assert OneOf(lambda: ATTACKS).decode({"kind": "pgd", "step": "7/31"}) == Pgd(step=7 / 31)


def test_pgd_loop_projects_the_start():
    x, y = batch()
    threat = Threat.parse("L2:1/10")
    result = pgd_loop(network(), x, y, threat, cross_entropy, torch.full_like(x, 5.0), steps=1, step=1e-6)
    assert threat.contains(x, result.x).all()


# Tables and names


def test_attacks_are_read_from_tables_and_written_back():
    kind = OneOf(lambda: ATTACKS)
    attack = Restarts(attack=Restarts(attack=Mim(steps=3), count=2), count=4)
    written: Any = kind.encode(attack)
    assert written["kind"] == "restarts" and written["attack"]["attack"]["kind"] == "mim"
    assert kind.decode(written) == attack
    assert hash(attack) == hash(kind.decode(written))


@pytest.mark.parametrize(
    ("text", "attack"),
    [
        ("pgd-20", Pgd(steps=20)),
        ("PGD20", Pgd(steps=20)),
        ("pgd_100", Pgd(steps=100)),
        ("pgd", Pgd()),
        ("mim", Mim()),
        ("MI-FGSM", Mim()),
        ("mifgsm", Mim()),
        ("cw", Cw()),
        ("cw-100", Cw(steps=100)),
    ],
)
def test_attack_names_set_the_steps(text, attack):
    assert parse_attack(text) == attack


@pytest.mark.parametrize("text", ["", "20", "pgd-0", "psd-20", "restarts", "pgd-20x"])
def test_unknown_names_are_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"unknown attack .* \(known: pgd, mim"):
        parse_attack(text)


def test_crafting_takes_one_line():
    model, (x, y) = network(), batch()
    x_adv = craft(model, x, y, attack="pgd-20", threat="L2:128/255", seed=3)
    expected = perturb(Pgd(steps=20), model, x, y, Threat.parse("L2:128/255"), Rng(3)).x
    assert torch.equal(x_adv, expected)
    assert torch.equal(craft(model, x, y, attack=Cw(steps=1), threat=Threat.parse("L2:0")), x)


def test_crafting_within_a_huge_budget_gives_a_warning():
    model, (x, y) = network(), batch()
    with pytest.warns(UserWarning, match="Linf:0.6: expected a budget of at most 0.5"):
        craft(model, x, y, attack="pgd-1", threat="Linf:0.6")


@pytest.mark.parametrize("cls", ATTACKS.values())
def test_every_attack_has_a_first_line_of_documentation(cls):
    first = cls.__doc__.splitlines()[0]
    assert first.endswith(".") and len(first) > 20
