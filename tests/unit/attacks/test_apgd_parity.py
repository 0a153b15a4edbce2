"""APGD beside the public implementation of AutoAttack: point by point, and verdict by verdict."""

from __future__ import annotations

import warnings
from functools import cache
from math import comb
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from allrounder.attacks import Pgd, perturb
from allrounder.attacks.apgd import L1_SCHEDULE, Apgd
from allrounder.attacks.losses import dlr, targeted_dlr
from allrounder.attacks.search.base import RoundInit, query_model
from allrounder.data import Embedded
from allrounder.models import SmallCnn
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_apgd import OneByOne, follow, images, natural

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    public = pytest.importorskip(
        "pyautoattack.autopgd_base", reason="pyautoattack is not installed; it is only compared with"
    )

IMAGES = 150


def test_the_ratios_of_logits_and_their_gradients_are_the_public_ones():
    z = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z, y = z.requires_grad_(), torch.arange(200) % 6
    other = public.APGDAttack_targeted(lambda x: x, eps=0.1, device="cpu")
    other.y_target = target = (y + 1) % 6
    for ours, theirs in (
        (dlr(z, y), other.dlr_loss(z, y)),
        (targeted_dlr(z, y, target), other.dlr_loss_targeted(z, y)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        gradients = [torch.autograd.grad(loss.sum(), z)[0] for loss in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def public_points(text, start, steps, model, x, y):
    """All points that the public APGD asks about, from a start, or in L1 from the noise that makes it."""
    points = []

    def watched(x):
        points.append(x.detach().clone())
        return model(x)

    threat = Threat.parse(text)
    search = public.APGDAttack(
        watched, n_iter=steps, norm=threat.norm.name, eps=threat.eps, device="cpu", seed=0
    )
    search.init_hyperparam(x)
    if threat.norm.name == "L1":
        with mock.patch.object(torch, "randn", lambda *args, **kwargs: start.clone()):
            search.attack_single_run(x, y)
    else:
        search.attack_single_run(x, y, x_init=start)
    return points


@pytest.mark.parametrize(("text", "shared"), [("Linf:1/255", 101), ("L2:1/20", 58)])
def test_points_from_the_same_start_are_the_public_ones(text, shared):
    model, x, threat = OneByOne(), images(), Threat.parse(text)
    asked, states = follow(Apgd(), model, x, threat)
    points = public_points(text, states[0]["point"], 100, model, x, natural(model, x)[1])
    assert len(points) == len(asked) == 101
    # In L2, rounding decides at later checkpoints whether a loss has risen.
    for ours, theirs in zip(asked[:shared], points, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_points_in_l1_are_the_public_ones_up_to_the_accuracy_of_its_projection():
    model, x, threat = OneByOne(), images(), Threat.parse("L1:1/4")
    asked, _ = follow(Apgd(), model, x, threat)
    noise = Rng(0).fold_in("round", 0, "start").normal(x)
    points = public_points("L1:1/4", noise, 100, model, x, natural(model, x)[1])
    # At a checkpoint it also counts coordinates that its projection leaves a little off.
    for ours, theirs in zip(asked[:5], points, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@cache
def trained():
    """A network after two epochs of adversarial training, and test images that it gets right."""
    data, threat = Embedded().load(), Threat.parse("L2:1")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCnn(width=8).build(10, data.shape)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for t in range(2 * 40):
        rows = Rng(0).fold_in(t // 40).permutation(4000).view(40, 100)[t % 40]
        x, y = data.train.fetch(rows), data.train.labels[rows]
        x_adv = perturb(Pgd(steps=4), model, x, y, threat, Rng(t)).x
        optimiser.zero_grad()
        F.cross_entropy(model.train()(x_adv), y).backward()
        optimiser.step()
    model.eval().requires_grad_(False)
    x, y = data.test.fetch(torch.arange(400)), data.test.labels[:400]
    right = (model(x).argmax(1) == y).nonzero().squeeze(1)[:IMAGES]
    assert len(right) == IMAGES
    return model, x[right], y[right]


def broken_by_ours(search, threat):
    """Which images are fooled, and the number of queries."""
    model, x, y = trained()
    logits, fooled, asked = model(x), torch.zeros(IMAGES, dtype=torch.bool), 0
    for number in range(search.num_rounds(10)):
        rows = (~fooled).nonzero().squeeze(1)
        rng = Rng(0).fold_in("round", number).per_example(rows)
        state = search.begin(RoundInit(x[rows], y[rows], logits[rows], threat, rng, number))
        while len(rows) and not search.is_finished(state).all():
            answer = query_model(search, model, state, threat, True)
            asked += len(rows)
            inside = threat.contains(x[rows], answer.x, slack=1e-6)
            left = ~((answer.logits.argmax(1) != y[rows]) & inside)
            fooled[rows[~left]] = True
            state = {name: rest[left] for name, rest in search.tell(state, answer, threat).items()}
            rows = rows[left]
    return fooled, asked


def broken_by_theirs(kind, threat, **fields):
    model, x, y = trained()
    asked = []

    def counted(x):
        asked.append(len(x))
        return model(x)

    search = kind(counted, norm=threat.norm.name, eps=threat.eps, device="cpu", seed=0, **fields)
    x_adv = search.perturb(x, y)
    assert threat.contains(x, x_adv).all()
    return model(x_adv).argmax(1) != y, sum(asked)


CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "ce": ({}, "APGDAttack", {"loss": "ce"}),
    "dlr": ({"surrogate": "dlr"}, "APGDAttack", {"loss": "dlr"}),
    "targeted": ({"surrogate": "dlr", "targets": 3}, "APGDAttack_targeted", {"n_target_classes": 3}),
    "enlarged": ({"schedule": L1_SCHEDULE}, "APGDAttack", {"loss": "ce", "use_largereps": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "case"),
    [(text, case) for text in ("Linf:0.06", "L2:1.2", "L1:10") for case in ("ce", "dlr", "targeted")]
    + [("L1:10", "enlarged")],
)
def test_verdicts_are_not_weaker_than_the_public_ones(text, case):
    fields, kind, other = CASES[case]
    threat = Threat.parse(text)
    ours, asked = broken_by_ours(Apgd(**fields), threat)
    theirs, counted = broken_by_theirs(getattr(public, kind), threat, **other)
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    print(f"{text} {case}: fooled {int(ours.sum())} and {int(theirs.sum())} of {IMAGES}, ", end="")
    print(f"{only_ours} only by ours, {only_theirs} only by theirs; {asked} points and {counted}")
    assert IMAGES // 10 < int(theirs.sum()) < IMAGES * 9 // 10
    # One-sided McNemar test: were neither stronger, each would win a discordant image as often as the other.
    discordant = only_ours + only_theirs
    chance = sum(comb(discordant, k) for k in range(only_theirs, discordant + 1)) / 2**discordant
    assert chance > 0.05
    assert asked <= counted
