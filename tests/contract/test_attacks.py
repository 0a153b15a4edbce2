"""What every attack promises; a new line in ATTACKS is tested here without a new test."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks import ATTACKS, Pgd, perturb
from allrounder.config.fields import OneOf
from allrounder.config.time import Time
from allrounder.inference import fold as folding
from allrounder.rng import Rng
from allrounder.threats.norms import L1
from allrounder.threats.threat import Threat
from allrounder.types import Passes

WITH_FIELDS = {
    "pgd": {"steps": 4},
    "mim": {"steps": 4},
    "cw": {"steps": 4},
    "early-stop-pgd": {"steps": 4, "tau": 3},
    "restarts": {"attack": Pgd(steps=3), "count": 3},
    "worst-of": {"attack": Pgd(steps=3)},
    "random-of": {"attack": Pgd(steps=3)},
    "per-norm": {"linf": Pgd(steps=4), "l2": Pgd(steps=4), "l1": Pgd(steps=4)},
    "apgd-train": {"steps": 4},
    "msd": {"steps": 4},
    "curriculum": {"first": Pgd(steps=2), "then": Pgd(steps=4), "at": Time.parse("50%")},
}
"""Fields that keep these tests short, or that an attack cannot be made without."""
CLIMBERS = ("pgd", "mim", "cw", "restarts", "worst-of", "random-of", "apgd-train", "msd")
"""Attacks that follow the gradient to the top of a linear network."""
THREATS = {"Linf": "Linf:8/255", "L2": "L2:1/2", "L1": "L1:3"}

KINDS = pytest.mark.parametrize("kind", list(ATTACKS))
CASES = pytest.mark.parametrize(
    ("kind", "threat"),
    [
        pytest.param(kind, Threat.parse(THREATS[norm.name]), id=f"{kind}-{norm.name}")
        for kind, cls in ATTACKS.items()
        for norm in sorted(cls.norms, key=lambda norm: norm.name)
    ],
)
CASES_AND_LAYERS = pytest.mark.parametrize(
    ("kind", "threat", "norm_layers"),
    [
        pytest.param(*case.values, norm_layers, id=f"{norm_layers}-{case.id}")
        for case in CASES.args[1]
        for norm_layers in ("eval", "train", "train_frozen")
        if norm_layers == "eval" or not ATTACKS[case.values[0]].splits_batches
    ],
)


def attack_of(kind):
    return ATTACKS[kind](**WITH_FIELDS.get(kind, {}))


def network(dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(6 * 36, 5)).to(dtype).train()


def batch(n=6, dtype=torch.float32):
    x = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return x, torch.arange(n) % 5


@CASES_AND_LAYERS
def test_results_stay_in_ball_and_box_and_the_network_is_restored(kind, threat, norm_layers):
    model, (x, y) = network(), batch()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ambient = torch.get_rng_state()
    result = perturb(attack_of(kind), model, x, y, threat, Rng(0), norm_layers=norm_layers)
    assert (threat.norm.length(result.x - x) <= threat.eps + 1e-5 * max(1, threat.eps)).all()
    assert result.x.min() >= 0 and result.x.max() <= 1
    assert result.x.is_contiguous() and not result.x.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert changed == (statistics if norm_layers == "train" else set())
    assert torch.equal(torch.get_rng_state(), ambient)


@CASES_AND_LAYERS
def test_the_same_seed_gives_the_same_images(kind, threat, norm_layers, monkeypatch):
    (x, y), seeds, drawn = batch(), (0, 0, 1), []
    generator = Rng.generator

    def noted(rng):
        # Folding draws numbers of its own; in training mode the network does.
        drawn.append(rng.path[:1] != ("folding",))
        return generator(rng)

    monkeypatch.setattr(Rng, "generator", noted)
    first, again, other = (
        perturb(attack_of(kind), network(), x, y, threat, Rng(seed), norm_layers=norm_layers).x
        for seed in seeds
    )
    assert torch.equal(first, again)
    assert torch.equal(first, other) != (any(drawn) or norm_layers != "eval")


@CASES
def test_per_example_draws_make_an_example_independent_of_its_neighbours(kind, threat):
    model, (x, y), rows = (
        network(torch.float64),
        batch(dtype=torch.float64),
        torch.tensor([7, 3, 11, 0, 5, 2]),
    )
    some = torch.tensor([4, 1])
    attack, rng = attack_of(kind), Rng(0)
    together = perturb(attack, model, x, y, threat, rng.per_example(rows)).x
    apart = perturb(attack, model, x[some], y[some], threat, rng.per_example(rows[some])).x
    torch.testing.assert_close(together[some], apart, rtol=0, atol=1e-9)


@CASES
def test_the_mean_loss_rises(kind, threat):
    model, (x, y) = network(), batch()
    result = perturb(attack_of(kind), model, x, y, threat, Rng(0))
    model.eval()
    with torch.no_grad():
        assert F.cross_entropy(model(result.x), y) > F.cross_entropy(model(x), y) + 1e-3


@CASES
def test_reported_loss_and_fooled_are_correct(kind, threat):
    model, (x, y) = network(torch.float64), batch(dtype=torch.float64)
    result = perturb(attack_of(kind), model, x, y, threat, Rng(0))
    if result.fooled is not None:
        assert torch.equal(result.fooled, model.eval()(result.x).argmax(1) != y)
    if result.loss is not None:
        assert result.loss.shape == y.shape and not result.loss.requires_grad


@CASES_AND_LAYERS
def test_declared_passes_are_the_counted_ones(kind, threat, norm_layers, monkeypatch):
    monkeypatch.setattr(folding, "folded_copy", lambda model, example: None)
    model, (x, y), forwards, backwards = network(), batch(), [], []

    def count(module, inputs, logits):
        forwards.append(len(inputs[0]))
        if logits.requires_grad:
            logits.register_hook(lambda g: backwards.append(len(g)))

    model.register_forward_hook(count)
    result = perturb(attack_of(kind), model, x, y, threat, Rng(0), norm_layers=norm_layers)
    assert result.passes == Passes(len(forwards), len(backwards))


@pytest.mark.parametrize("kind", CLIMBERS)
@pytest.mark.parametrize("text", ["Linf:1/20", "L2:1/10", "L1:1/5"])
def test_the_optimum_of_a_linear_network_is_reached(kind, text):
    # With logits (0, w.x) and label 0 every loss rises with w.x, whose maximum is w.x + eps * |w|_dual.
    generator = torch.Generator().manual_seed(0)
    x = 0.3 + 0.4 * torch.rand(3, 3, 6, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)

    def linear(x):
        rise = (x * w).flatten(1).sum(1)
        return torch.stack([torch.zeros_like(rise), rise], 1)

    fields = {"attack": Pgd(steps=40)} if kind in ("restarts", "worst-of", "random-of") else {"steps": 40}
    fields |= {"count": 2} if kind == "restarts" else {}
    threat = Threat.parse(text)
    result = perturb(ATTACKS[kind](**fields), linear, x, torch.zeros(3, dtype=torch.long), threat, Rng(0))
    gain = ((result.x - x) * w).flatten(1).sum(1)
    dual = {"Linf": 1, "L2": 2, "L1": float("inf")}[str(threat.norm)]
    best = threat.eps * w.flatten().norm(dual)
    # An L1 step moves 5 of these 108 coordinates, so it settles on their mean slope, not on the largest.
    share = 0.7 if isinstance(threat.norm, L1) else 1 - 1e-6
    assert (gain >= share * best).all() and (gain <= best * (1 + 1e-9)).all()


@KINDS
def test_attacks_are_frozen_values_that_round_trip(kind):
    attack, table = attack_of(kind), OneOf(lambda: ATTACKS)
    assert table.decode(table.encode(attack)) == attack
    assert hash(attack) == hash(attack_of(kind))
    for name in vars(attack):
        with pytest.raises(AttributeError):
            setattr(attack, name, None)
