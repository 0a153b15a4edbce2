"""Square against the public implementation of AutoAttack, on a small network trained adversarially."""

from __future__ import annotations

from functools import cache
from math import comb

import pytest
import torch
import torch.nn.functional as F

from allrounder.attacks import Pgd, perturb
from allrounder.attacks.square import Square, _pattern_table
from allrounder.data import Embedded
from allrounder.models.small_cnn import SmallCnnNetwork
from allrounder.rng import Rng
from allrounder.threats.norms import Linf
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_square import drive, images, network, numbers, question

public = pytest.importorskip(
    "pyautoattack.square", reason="pyautoattack is not installed; it is only compared with"
)

IMAGES, QUERIES = 200, 300
THREATS = ("Linf:0.12", "L2:1.8", "L1:15")
"""Budgets at which about half of the correctly classified images are fooled."""


def everything(split):
    return split.fetch(torch.arange(len(split))), split.labels.long()


@cache
def trained():
    """A network after two epochs of adversarial training, and test images that it gets right."""
    data = Embedded().load()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCnnNetwork(torch.nn.Identity(), 1, 8, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = everything(data.train)
    threat, step = Threat.parse("Linf:0.06"), 0
    for epoch in range(2):
        for rows in Rng(0, ("order", epoch)).permutation(len(x)).split(64):
            step += 1
            x_adv = perturb(
                Pgd(steps=3, step=0.5), model, x[rows], y[rows], threat, Rng(0, ("craft", step))
            ).x
            optimizer.zero_grad()
            F.cross_entropy(model(x_adv), y[rows]).backward()
            optimizer.step()
    model.eval().requires_grad_(False)
    x, y = everything(data.test)
    right = (model(x).argmax(1) == y).nonzero().flatten()[:IMAGES]
    return model, x[right], y[right]


def mcnemar(a, b):
    """How likely a difference as large as this one is, if both are equally strong: a binomial test of the
    examples on which they differ."""
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n, k = only_a + only_b, min(only_a, only_b)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)


def robust_against(model, x_adv, y):
    return model(x_adv).argmax(1) == y


@pytest.mark.slow
@pytest.mark.parametrize("text", THREATS)
def test_square_is_as_strong_as_the_public_one(text):
    model, x, y = trained()
    threat = Threat.parse(text)
    rng = Rng(1).per_example(torch.arange(len(x)))
    ours = robust_against(model, perturb(Square(queries=QUERIES), model, x, y, threat, rng).x, y)
    with torch.random.fork_rng():
        attack = public.SquareAttack(
            model,
            norm=threat.norm.name,
            eps=threat.eps,
            n_queries=QUERIES,
            seed=1,
            device="cpu",
            resc_schedule=False,
        )
        theirs = robust_against(model, attack.perturb(x, y), y)
    assert 0.1 < theirs.float().mean() < 0.9
    assert mcnemar(ours, theirs) > 0.01, (ours.float().mean(), theirs.float().mean())


def signs(u, shape):
    return torch.where(torch.as_tensor(u) < 0.5, 1.0, -1.0).reshape(shape)


def script(asked, queries):
    """The numbers of our search, in the order in which the public one draws its own."""
    start, moves = numbers(asked, Square(queries=queries))
    if isinstance(asked.threat.norm, Linf):
        yield start[0]
        for u in moves[0]:
            yield from (u[0], u[1], u[2:])
    else:
        c = asked.x.shape[1]
        for u in start[0].reshape(-1, c + 1):
            yield from (u[c], u[:c])
        for u in moves[0]:
            yield from (*u[:5], u[5:])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=str)
@pytest.mark.parametrize("text", ["Linf:8/255", "L2:1/2", "L1:12"])
def test_with_the_same_numbers_both_ask_about_the_same_images(text, shape, monkeypatch):
    model, x, queries = network(shape, dtype=torch.float32), images(1, shape, torch.float32), 80
    label = model(x).argmax(1)
    asked = question(x, label, Threat.parse(text))
    path, states = drive(Square(queries=queries), model, asked, queries + 1)
    given, seen = script(asked, queries), []

    def spy(x):
        # Far from a mistake, so that the search goes on; the order of margins stays.
        seen.append(x.clone())
        return model(x) + 100 * F.one_hot(label, 4)

    norm, eps = asked.threat.norm.name, asked.threat.eps
    attack = public.SquareAttack(
        spy, norm=norm, eps=eps, n_queries=queries, device="cpu", resc_schedule=False
    )
    attack.random_int = lambda low, high: torch.tensor([int(next(given) * (high - low))])
    attack.random_choice = lambda shape: signs(next(given), shape)
    monkeypatch.setattr(torch, "rand", lambda shape: 1 - torch.tensor([next(given)]))
    attack.init_hyperparam(x)
    attack.attack_single_run(x, label)
    assert len(seen) == len(path) == queries + 1
    assert len({float(state["margin"]) for state in states}) > 3
    for theirs, ours in zip(seen, path, strict=True):
        torch.testing.assert_close(ours.x, theirs, rtol=0, atol={"Linf": 1e-7, "L2": 2e-6, "L1": 2e-4}[norm])


@pytest.mark.parametrize("norm", ["L2", "L1"])
def test_patterns_are_the_public_ones(norm):
    attack = public.SquareAttack(lambda x: x, norm=norm, eps=1.0, device="cpu")
    for s in (1, 2, 3, 5, 6, 7, 11, 21, 25, 29):
        with torch.random.fork_rng():
            result = attack.eta(s)
        ours = _pattern_table((s,), 2 if norm == "L2" else 1, torch.float32, torch.device("cpu"))[0]
        assert min(float((result - one).abs().max()) for one in ours) < 1e-6
