"""PGD beside the one of foolbox, from the same start, step by step."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from allrounder import L1, Pgd, Rng, craft
from allrounder.threats.threat import Threat

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    foolbox = pytest.importorskip(
        "foolbox", reason="foolbox, an implementation to compare with, is not installed (extra: oracle)"
    )
    eagerpy = pytest.importorskip("eagerpy", reason="eagerpy, which foolbox is written in, is not installed")

STEPS = (1, 2, 3, 5, 10, 20)
THEIRS = {"Linf": "LinfPGD", "L2": "L2PGD", "L1": "SparseL1DescentAttack"}
TWO = pytest.mark.parametrize("text", ["Linf:8/255", "L2:0.4"])


def network():
    """Smooth, so that rounding does not turn into another sign of a gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 4)
        return nn.Sequential(*layers).double().eval().requires_grad_(False)


def images(low=-0.2, high=1.2):
    """Many pixels lie on the walls of the box, unless low and high are inside of it."""
    x = torch.rand(32, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (low + (high - low) * x).clamp(0, 1)


def theirs(model, x, y, threat, steps, start=None, **fields):
    """The last point of foolbox, with steps of a quarter of the budget, and whether it calls it a success."""
    kind = getattr(foolbox.attacks, THEIRS[threat.norm.name])
    attack = kind(abs_stepsize=threat.eps / 4, steps=steps, random_start=start is not None, **fields)
    if start is not None:
        attack.get_random_start = lambda x0, epsilon: eagerpy.astensor(x + start)
    bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    result, _, success = attack(bounded, x, y, epsilons=threat.eps)
    return result, success


def agree(model, x, y, ours, result, success):
    torch.testing.assert_close(ours, result, rtol=0, atol=1e-13)
    assert torch.equal(model(ours).argmax(1) != y, success)


@TWO
def test_from_the_image_itself_every_step_is_the_same(text):
    model, x, threat = network(), images(), Threat.parse(text)
    y, ours, fooled = model(x).argmax(1), x, []
    for steps in STEPS:
        ours = craft(model, x, y, attack=Pgd(steps=steps, step=0.25, start="zero"), threat=threat)
        result, success = theirs(model, x, y, threat, steps)
        agree(model, x, y, ours, result, success)
        fooled.append(int(success.sum()))
    # Something is compared only if ball and box bind, and if some examples break and others do not.
    d = ours - x
    assert (threat.norm.length(d) > 0.999 * threat.eps).any()
    assert (((ours == 0) | (ours == 1)) & (d != 0)).any()
    assert 0 < fooled[0] < fooled[-1] < len(x)


@TWO
def test_from_the_same_random_start_every_step_is_the_same(text):
    model, x, threat = network(), images(), Threat.parse(text)
    y, start = model(x).argmax(1), threat.norm.sample(x, threat.eps, Rng(3).fold_in("start"))
    for steps in STEPS:
        ours = craft(model, x, y, attack=Pgd(steps=steps, step=0.25), threat=threat, seed=3)
        agree(model, x, y, ours, *theirs(model, x, y, threat, steps, start))


@pytest.mark.parametrize("density", [0.01, 0.05, 0.3, 1.0])
def test_in_l1_the_sparse_steps_are_the_same_inside_ball_and_box(density):
    # Farther out the two differ on purpose: foolbox passes over pixels on a wall and projects on the ball
    # alone, to a point that may still lie beyond it.
    model, x, threat = network(), images(0.4, 0.6), Threat(L1(density=density), "1/2")
    y, pixels = model(x).argmax(1), x[0].numel()
    moved = max(1, round(density * pixels))
    quantile = max(pixels - moved - 0.5, 0) / (pixels - 1)
    for steps in (1, 2, 3):
        ours = craft(model, x, y, attack=Pgd(steps=steps, step=0.25, start="zero"), threat=threat)
        result, success = theirs(model, x, y, threat, steps, quantile=quantile)
        agree(model, x, y, ours, result, success)
        if steps == 1:
            assert ((ours != x).flatten(1).sum(1) == moved).all()
