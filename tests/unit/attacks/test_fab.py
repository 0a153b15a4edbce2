from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from allrounder.attacks.base import perturb
from allrounder.attacks.fab import Fab, displace, plane_distance
from allrounder.attacks.search.base import RoundInit, query_model
from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, Linf
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.reference import fab as twin

THREE = pytest.mark.parametrize("norm", [Linf(), L2(), L1()], ids=str)
THREATS = pytest.mark.parametrize("text", ["Linf:0.05", "L2:1/2", "L1:3"])
FAR = {"Linf": 0.3, "L2": 2.0, "L1": 8.0}
"""Budgets that some random starts lie in; the search itself does not look at them."""


def network(classes=4, dtype=torch.float64, seed=0):
    """Smooth, so that no gradient is close to a kink."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, classes)
        return nn.Sequential(*layers).to(dtype).requires_grad_(False)


def images(n=3, dtype=torch.float64, seed=1):
    x = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (1.2 * x - 0.1).clamp(0, 1).to(dtype)


def question(model, x, y, threat, number=0, rng=None):
    return RoundInit(x, y, model(x), threat, rng or Rng(0).fold_in("round", number), number)


def follow(search, model, state, threat):
    """Every state from the beginning to the end of a round, and the answers between them."""
    states, answers = [state], []
    while not search.is_finished(state).all():
        for gradient in search.needs_grad_cycle:
            answers.append(query_model(search, model, state, threat, gradient))
            state = search.tell(state, answers[-1], threat)
            states.append(state)
    return states, answers


# The search and its twin


@THREE
@pytest.mark.parametrize("number", [0, 3, None])
def test_every_step_equals_its_twin(norm, number):
    model, x, threat = network(), images(), Threat(norm, str(FAR[norm.name]))
    y, steps = model(x).argmax(1), 8
    search = Fab(steps=steps, targets=0 if number is None else 3, restarts=1 if number is None else 2)
    start = search.begin(question(model, x, y, threat, number or 0))
    states, _ = follow(search, model, start, threat)
    for i in range(len(x)):
        target = None if number is None else int(start["targets"][i, 0])
        points, best = twin.fab(
            model, x[i].numpy(), int(y[i]), norm.name, target=target, steps=steps,
            start=start["point"][i].numpy(),
        )  # fmt: skip
        reached = [s["point"][i].numpy() for s in states if s["steps_checked"][i] < s["steps_taken"][i]]
        assert len(reached) == steps
        np.testing.assert_allclose(reached, points, rtol=0, atol=1e-8)
        np.testing.assert_allclose(float(states[-1]["best_length"][i]), best, rtol=1e-8)


@THREE
@pytest.mark.parametrize("targets", [0, 1])
def test_a_round_makes_exactly_its_steps(norm, targets):
    model, x, threat = network(), images(4), Threat(norm, "0.1")
    y, search = model(x).argmax(1), Fab(steps=5, targets=targets)
    states, answers = follow(search, model, search.begin(question(model, x, y, threat)), threat)
    assert (states[-1]["steps_taken"] == 5).all() and len(answers) == 10
    # Planes are seen and points judged in turn; without a target there is a plane for every wrong class.
    assert [answer.passes for answer in answers] == [Passes(1, 1 if targets else 3), Passes(1)] * 5


# What it finds


def linear(w, b):
    """Logits of an affine network, with w of shape (k, c, h, w)."""
    return lambda x: (x[:, None] * w).sum(dim=(2, 3, 4)) + b


@THREE
@pytest.mark.parametrize(
    ("walls", "dtype"), [(False, torch.float64), (True, torch.float64), (True, torch.float32)]
)
def test_the_distance_in_a_linear_network_is_exact_within_one_percent(norm, walls, dtype):
    g = torch.Generator().manual_seed(0)
    w = torch.randn(2, 3, 6, 6, generator=g, dtype=torch.float64)
    x = images(6) if walls else 0.4 + 0.2 * torch.rand(6, 3, 6, 6, generator=g, dtype=torch.float64)
    lines = linear(w, torch.zeros(2, dtype=torch.float64))
    y = lines(x).argmax(1)
    other = lines(x).gather(1, 1 - y[:, None]).squeeze(1) - lines(x).gather(1, y[:, None]).squeeze(1)
    slope = w[1 - y] - w[y]
    exact = norm.length(displace(x, slope, other, norm))
    if not walls and norm != L1():
        torch.testing.assert_close(exact, plane_distance(slope, other, norm))
    model, threat = linear(w.to(dtype), torch.zeros(2, dtype=dtype)), Threat(norm, "0.1")
    search, x = Fab(steps=15), x.to(dtype)
    best = follow(search, model, search.begin(question(model, x, y, threat)), threat)[0][-1]["best_length"]
    assert (best >= exact * (1 - 1e-5)).all() and (best <= exact * 1.01).all()


@THREE
def test_without_targets_the_closest_of_all_boundaries_is_found(norm):
    g = torch.Generator().manual_seed(1)
    w, b = torch.randn(5, 3, 6, 6, generator=g, dtype=torch.float64), torch.randn(5, generator=g).double()
    model, x, threat = linear(w, b), images(6), Threat(norm, "0.1")
    y = model(x).argmax(1)
    exact = torch.full((6,), float("inf"), dtype=torch.float64)
    for k in range(5):
        rise = model(x)[:, k] - model(x).gather(1, y[:, None]).squeeze(1)
        length = norm.length(displace(x, w[k] - w[y], rise, norm))
        exact = torch.where(y == k, exact, torch.minimum(exact, length))
    search = Fab(steps=15, targets=0)
    best = follow(search, model, search.begin(question(model, x, y, threat)), threat)[0][-1]["best_length"]
    # The gap that chooses the boundary does not see the box, so where walls bind another one may be closest.
    assert (best >= exact * (1 - 1e-9)).all()
    assert (best <= exact * 1.01).sum() >= 5 and (best <= exact * 1.2).all()


@THREATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_misclassified_and_inside_the_threat(text, dtype):
    model, x, threat = network(dtype=dtype), images(12, dtype), Threat.parse(text)
    y = model(x).argmax(1)
    result = perturb(Fab(steps=10, targets=2), model, x, y, threat, Rng(0))
    assert result.fooled is not None and result.fooled.any()
    assert torch.equal(model(result.x).argmax(1) != y, result.fooled)
    assert threat.contains(x, result.x, slack=1e-6).all() and result.x.dtype == dtype
    assert torch.equal(result.x[~result.fooled], x[~result.fooled])


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 10, 100])
@pytest.mark.parametrize("targets", [9, 0])
def test_any_number_of_classes_works(classes, targets):
    model, x, threat = network(classes), images(4), Threat.parse("Linf:0.2")
    y, search = model(x).argmax(1), Fab(steps=8, targets=targets)
    assert search.num_rounds(classes) == (min(9, classes - 1) if targets else 1)
    result = perturb(search, model, x, y, threat, Rng(0))
    assert result.fooled is not None and result.fooled.all()


def test_rounds_go_through_targets_by_natural_logit_and_through_starts_within():
    model, x, threat = network(6), images(5), Threat.parse("L2:1/2")
    y, search = model(x).argmax(1), Fab(targets=3, restarts=2)
    ranked = model(x).argsort(dim=1, descending=True)
    assert search.num_rounds(6) == 6
    for number in range(6):
        state = search.begin(question(model, x, y, threat, number))
        assert torch.equal(state["targets"][:, 0], ranked[:, 1 + number // 2])
        assert torch.equal(state["point"], x) == (number % 2 == 0)
    assert Fab().num_rounds(1) == 0 and Fab(targets=0, restarts=3).num_rounds(2) == 3


@THREE
def test_random_starts_lie_at_half_the_budget_and_in_the_box(norm):
    model, x, threat = network(), torch.full((4, 3, 6, 6), 0.5, dtype=torch.float64), Threat(norm, "0.3")
    y, search = model(x).argmax(1), Fab(restarts=2)
    start = search.begin(question(model, x, y, threat, 1))["point"]
    torch.testing.assert_close(norm.length(start - x), torch.full((4,), 0.15, dtype=torch.float64))
    assert not torch.equal(start[0], start[1])
    corner = search.begin(question(model, torch.ones_like(x), y, threat, 1))["point"]
    assert corner.max() <= 1 and corner.min() >= 0


@THREE
def test_the_scale_of_the_logits_does_not_matter(norm):
    model, x, threat = network(), images(4), Threat(norm, "0.1")
    y, search = model(x).argmax(1), Fab(steps=6)
    plain, small = (
        follow(search, scaled, search.begin(question(scaled, x, y, threat)), threat)[0][-1]
        for scaled in (model, lambda x: 1e-12 * model(x))
    )
    assert plain["best_length"].isfinite().any()
    torch.testing.assert_close(small["best_length"], plain["best_length"], rtol=1e-6, atol=0)
