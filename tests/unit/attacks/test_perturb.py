from __future__ import annotations

import pytest
import torch
from torch import nn

from allrounder.attacks import Attack, AttackResult, Cw, Pgd, perturb
from allrounder.errors import ThreatError
from allrounder.inference import fold as folding
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Linf
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Passes

THREAT = Threat.parse("Linf:8/255")


class Careless(Attack):
    """Returns a given result, after it changes modes and gradients of the network."""

    norms = ALL_NORMS

    def __init__(self, make):
        self.make = make

    def run(self, model, x, y, threat, rng):
        model(x)
        return AttackResult(x=self.make(x), passes=Passes(1, 0))

    def __repr__(self):
        return "Careless"


class Union(Careless):
    supports_unions = True


class LinfOnly(Careless):
    norms = frozenset({Linf})


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(64, 4))


def batch(n=4):
    return torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 4


def go(attack: Attack = Pgd(steps=2), model=None, x=None, y=None, threat: Threat | AnyOf = THREAT, **kwargs):
    images, labels = batch()
    model = network() if model is None else model
    return perturb(
        attack, model, images if x is None else x, labels if y is None else y, threat, Rng(0), **kwargs
    )


def state(model):
    """Everything about a network that a caller could miss."""
    return (
        [module.training for module in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
        [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()],
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
    )


def same(a, b):
    grads = all(p is q is None or torch.equal(p, q) for p, q in zip(a[2], b[2], strict=True))
    return a[:2] == b[:2] and grads and all(torch.equal(tensor, b[3][name]) for name, tensor in a[3].items())


def odd_network():
    """A network with mixed modes, a frozen parameter and a gradient that its owner has not used yet."""
    model = network().train()
    model[1].eval()
    parameters = dict(model.named_parameters())
    parameters["0.bias"].requires_grad_(False)
    parameters["5.weight"].grad = torch.ones(4, 64)
    return model


# What comes in


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.rand(3, 6, 6),
            "images are torch.float32 of shape (3, 6, 6), expected float32 or float64 of shape",
        ),
        (torch.zeros(4, 3, 6, 6, dtype=torch.uint8), "images are torch.uint8"),
        (torch.rand(4, 3, 6, 6).half(), "images are torch.float16"),
        (torch.rand(4, 3, 0, 6), "of shape (4, 3, 0, 6)"),
        (torch.rand(4, 3, 6, 6) * 255, "expected [0, 1]; put any normalisation inside the model"),
        (torch.rand(4, 3, 6, 6) - 2e-6 - 1, "expected [0, 1]"),
    ],
)
def test_invalid_images_are_refused(x, message):
    with pytest.raises(ValueError) as error:
        go(x=x)
    assert message in str(error.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_images_that_are_not_finite_are_refused(bad):
    x, _ = batch()
    x[2, 0, 0, 0] = bad
    with pytest.raises(ValueError, match="1 of 4 images hold NaN or infinity"):
        go(x=x)


def test_rounding_errors_beyond_the_box_are_allowed():
    x, _ = batch()
    x[0, 0, 0, 0] = 1 + 5e-7
    assert go(x=x).x.max() <= 1


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0.0, 1, 2, 3]), "labels are torch.float32"),
        (torch.tensor([True] * 4), "labels are torch.bool"),
        (torch.eye(4).long(), "of shape (4, 4), expected integers of shape (4,)"),
        (torch.tensor([0, 1]), "of shape (2,)"),
        (torch.tensor([0, 1, -1, 2]), "the smallest label is -1, expected 0 or more"),
        (torch.tensor([0, 1, 4, 2]), "the largest label is 4, expected at most 3"),
    ],
)
def test_invalid_labels_are_refused(y, message):
    with pytest.raises(ValueError) as error:
        go(y=y)
    assert message in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_any_integers(dtype):
    assert torch.equal(go(y=batch()[1].to(dtype)).x, go().x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: (x, x), "the network returned tuple, expected logits of shape (4, k)"),
        (lambda x: x, "the network returned (4, 3, 6, 6)"),
        (lambda x: x.flatten(1)[:2], "the network returned (2, 108)"),
    ],
)
def test_invalid_network_outputs_are_refused(model, message):
    with pytest.raises(ValueError) as error:
        go(model=model)
    assert message in str(error.value)


def test_an_attack_is_refused_under_a_norm_it_does_not_know():
    with pytest.raises(
        ValueError, match=r"Careless works in Linf, got the threat L2:1/2; change one of them"
    ):
        go(LinfOnly(torch.clone), threat=Threat.parse("L2:1/2"))


def test_a_union_needs_an_attack_that_searches_unions():
    union = AnyOf((Threat.parse("Linf:1/10"), Threat.parse("L2:1")))
    with pytest.raises(ValueError, match=r"searches one ball, got the union Linf:1/10 or L2:1"):
        go(Pgd(), threat=union)
    x, _ = batch()
    assert torch.equal(go(Union(torch.clone), threat=union).x, x)
    with pytest.raises(ThreatError, match="4 of 4"):
        go(Union(lambda x: 1 - x), threat=union)


@pytest.mark.parametrize("norm_layers", ["train", "train_frozen", "evil"])
def test_a_plain_function_has_no_modes(norm_layers):
    with pytest.raises((ValueError, TypeError)):
        go(model=lambda x: x.flatten(1), norm_layers=norm_layers)


# What goes out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x + 1, "beyond [0, 1]"),
        (lambda x: 1 - x, "beyond the ball"),
        (lambda x: x * float("nan"), "returned 4 of 4 images with NaN or infinity"),
        (
            lambda x: torch.where(torch.arange(4).view(4, 1, 1, 1) == 2, 1 - x, x),
            "returned 1 of 4 images outside",
        ),
        (lambda x: x[..., :5], "of shape (4, 3, 6, 5) on cpu, expected"),
        (lambda x: x[:3], "of shape (3, 3, 6, 6) on cpu, expected"),
        (lambda x: x.double(), "torch.float64 of shape"),
    ],
)
@pytest.mark.parametrize("norm_layers", ["eval", "train_frozen"])
def test_invalid_results_raise_an_error(make, message, norm_layers):
    model = odd_network()
    before = state(model)
    with pytest.raises(ThreatError) as error:
        go(Careless(make), model, norm_layers=norm_layers)
    assert message in str(error.value)
    assert str(error.value).startswith("Careless under Linf:8/255")
    assert same(before, state(model))


def test_the_worst_excess_is_named():
    x = torch.full((2, 3, 6, 6), 0.5)
    with pytest.raises(
        ThreatError, match=r"2 of 2 images outside the threat; the worst is 0.1 beyond the ball"
    ):
        go(Careless(lambda x: x + 0.1 + 8 / 255), x=x, y=torch.tensor([0, 1]))


def test_nan_gradients_raise_an_error():
    with pytest.raises(ThreatError, match="gradients are not finite"):
        go(model=lambda x: x.flatten(1) * float("nan"))


def test_results_are_detached_contiguous_and_new():
    x, _ = batch()
    for given in (x, x.requires_grad_()):
        result = go(x=given).x
        assert not result.requires_grad and result.grad_fn is None and result.is_contiguous()
    assert go(Careless(lambda x: x), x=x).x.data_ptr() != x.data_ptr()


def test_results_have_the_layout_of_the_images(monkeypatch):
    x, _ = batch()
    model = network().eval()
    copy = network().eval()

    def folded(x):
        return copy(x.contiguous(memory_format=torch.channels_last))

    monkeypatch.setattr(folding, "folded_copy", lambda model, example: folded)
    assert go(model=model, x=x).x.stride() == x.stride()
    last = x.contiguous(memory_format=torch.channels_last)
    assert go(model=model, x=last).x.stride() == last.stride()


def test_an_empty_batch_comes_back_empty_without_touching_the_network():
    result = go(model=lambda x: 1 / 0, x=torch.empty(0, 3, 6, 6), y=torch.empty(0, dtype=torch.long))
    assert result.x.shape == (0, 3, 6, 6) and result.passes == Passes()


@pytest.mark.parametrize("threat", ["Linf:0", "L2:0", "L1:0"])
@pytest.mark.parametrize("start", ["random", "boundary", "gaussian", "zero"])
def test_a_budget_of_zero_returns_the_images_exactly(threat, start):
    assert torch.equal(go(Pgd(steps=2, start=start), threat=Threat.parse(threat)).x, batch()[0])


@pytest.mark.parametrize("threat", ["Linf:1", "L2:1e30", "L1:1e30"])
def test_a_huge_budget_still_ends_in_the_box(threat):
    x, _ = batch()
    result = go(Pgd(steps=3), threat=Threat.parse(threat)).x
    assert (result >= 0).all() and (result <= 1).all() and (result - x).abs().max() > 0.5


@pytest.mark.parametrize("threat", ["Linf:8/255", "L2:1/2", "L1:3"])
def test_a_batch_of_one_works(threat):
    x, y = batch(1)
    assert go(x=x, y=y, threat=Threat.parse(threat)).x.shape == x.shape


def test_one_class_is_enough_for_cross_entropy_but_not_for_a_margin():
    one, y = nn.Sequential(nn.Flatten(), nn.Linear(108, 1)), torch.zeros(4, dtype=torch.long)
    assert THREAT.contains(batch()[0], go(model=one, y=y).x).all()
    with pytest.raises(ValueError, match="compares two classes"):
        go(Cw(steps=1), one, y=y)


def test_the_norm_of_a_threat_may_carry_its_own_density():
    x, _ = batch()
    few, many = (
        go(Pgd(steps=1, start="zero"), threat=Threat.parse(t)).x for t in ("L1(0.01):1", "L1(0.5):1")
    )
    assert ((few - x) != 0).flatten(1).sum(1).max() <= 1 < ((many - x) != 0).flatten(1).sum(1).min()
