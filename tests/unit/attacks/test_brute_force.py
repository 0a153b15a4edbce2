"""Attacks where the truth is known: planes across four pixels, and networks of two pixels searched whole.

A search may get lost in a network, but not on a plane: with a budget a little above the distance it has to
arrive, and with a budget a little below there is nothing to find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Apgd, Attack, AutoAttack, Cascade, Fab, Square, perturb
from allrounder.rng import Rng
from allrounder.threats.norms import NORMS
from allrounder.threats.threat import Threat
from tests.reference import square as twin
from tests.reference.planes import DUAL, ORDER, Array, Planes, shortest

PAIRS = 5
STEPS = {"Linf": 10, "L2": 25, "L1": 20}
EACH = pytest.mark.parametrize("name", list(NORMS))


@dataclass(frozen=True, eq=False)
class Problem:
    """Images of which the first half is a little closer than eps to a mistake, and the rest a little
    farther."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    walled: int
    """For how many of them the box is in the way."""


@cache
def problem(name: str, classes: int, margin: float = 1.02, *, duel: bool = False, plain: bool = False):
    """Distances are eps / margin and eps * margin. Duel: all classes but two are far away. Plain: these two
    differ by slopes of one size, and no pixel is close to a wall."""
    rng = np.random.default_rng(130 + classes)
    weight = rng.normal(size=(classes, 4))
    if plain:
        weight[:2] = [[1, -1, 1, -1], [-1, 1, -1, 1]]
    bias = 0.3 * rng.normal(size=classes) / classes - weight.sum(1) / 2
    bias[2:] -= 20 * duel
    planes = Planes(weight, bias)
    start, end = (2 * rng.uniform(size=(200, 4)) - 0.5).clip(0, 1), rng.uniform(size=(200, 4))
    if plain:
        start, end = 0.3 + 0.4 * start, 0.3 + 0.4 * end
    # Only pixels off the walls differ between two ends, so that a wall stays a wall on the way.
    end = np.where((start == 0) | (start == 1), start, end)
    y = planes.predict(start)
    crossing = y != planes.predict(end)
    start, end, y = start[crossing], end[crossing], y[crossing]
    far = planes.distance(name, start, y)
    eps = 0.6 * float(np.median(far))
    # Some where the box is in the way, as far as there are any, then some others.
    walled = planes.distance_without_box(name, start, y) < 0.8 * far
    some = np.flatnonzero(far > eps * margin)
    some = np.tile(np.concatenate([some[walled[some]][: PAIRS // 2], some[~walled[some]]])[:PAIRS], 2)
    start, end, y = start[some], end[some], y[some]
    wanted = np.repeat([eps / margin, eps * margin], PAIRS)
    low, high = np.zeros(len(y)), np.ones(len(y))
    for _ in range(20):
        middle = (low + high) / 2
        beyond = planes.distance(name, between(start, end, middle), y) > wanted
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    x = between(start, end, low)
    np.testing.assert_allclose(planes.distance(name, x, y), wanted, rtol=1e-4)
    # The four pixels are the upper left ones of nine: Square never changes the last row and column alone.
    images, layer = torch.full((2 * PAIRS, 1, 3, 3), 0.5), nn.Linear(9, classes).requires_grad_(False)
    images[:, 0, :2, :2] = torch.from_numpy(x).view(-1, 2, 2)
    layer.weight.zero_()[:, [0, 1, 3, 4]] = torch.from_numpy(weight).float()
    layer.bias.copy_(torch.from_numpy(bias))
    return Problem(
        nn.Sequential(nn.Flatten(), layer),
        images,
        torch.from_numpy(y),
        Threat(NORMS[name](), repr(eps)),
        int((planes.distance_without_box(name, x, y) < 0.99 * wanted).sum()),
    )


def between(a: Array, b: Array, share: Array) -> Array:
    return a + share[:, None] * (b - a)


def find_fooled(attack: Attack, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Whether the images that the attack hands out are misclassified; the gateway checks that they are inside
    the threat."""
    assert torch.equal(model(x).argmax(1), y)
    result = perturb(attack, model, x, y, threat, Rng(0))
    wrong = model(result.x).argmax(1) != y
    assert result.fooled is not None and torch.equal(result.fooled, wrong)
    return wrong


def decides(attack: Attack, case: Problem) -> None:
    """It fools all images that can be fooled, and no others."""
    wrong = find_fooled(attack, case.model, case.x, case.y, case.threat)
    assert (int(wrong[:PAIRS].sum()), int(wrong[PAIRS:].sum())) == (PAIRS, 0)


# The truth itself


@EACH
def test_distances_are_those_of_a_grid_and_without_walls_those_of_the_formula(name: str):
    rng = np.random.default_rng(0)
    x, w = rng.uniform(size=(30, 4)), rng.normal(size=(30, 4))
    c = rng.uniform(size=30) ** 2 * (np.abs(w) * np.where(w > 0, 1 - x, x)).sum(1)
    result, formula = shortest(name, x, w, c), c / np.linalg.norm(w, DUAL[name], axis=1)
    way = {"Linf": np.sign(w), "L2": w, "L1": w * (np.abs(w) == np.abs(w).max(1, keepdims=True))}[name]
    end = x + (c / (way * w).sum(1))[:, None] * way
    free = ((end >= 0) & (end <= 1)).all(1)
    assert 5 < free.sum() < 25
    np.testing.assert_allclose(result[free], formula[free], rtol=1e-9)
    assert (result[~free] > formula[~free]).all()
    grid = np.array(list(product(np.linspace(0, 1, 13), repeat=4)))
    # The end of the shortest way, rounded uphill to the grid, is beyond the plane and hardly farther.
    rounding = np.linalg.norm(np.full(4, 1 / 12), ORDER[name])
    for i in range(30):
        d = grid - x[i]
        closest = np.linalg.norm(d[d @ w[i] >= c[i]], ORDER[name], axis=1).min()
        assert closest - rounding <= result[i] <= closest + 1e-9


@EACH
def test_in_some_problems_the_box_is_in_the_way_and_in_some_it_is_not(name: str):
    counts = [problem(name, classes, 1.01).walled for classes in (2, 3, 4, 10)]
    assert min(counts) > 0 and sum(counts) < 4 * 2 * PAIRS, counts


# Planes


@EACH
@pytest.mark.parametrize(
    ("classes", "loss", "search"),
    [
        (2, "ce", Apgd()),
        (10, "ce", Apgd()),
        (2, "margin", Apgd(surrogate="dlr")),
        (3, "dlr", Apgd(surrogate="dlr")),
        (3, "targeted margin", Apgd(surrogate="dlr", targets=1)),
        (4, "targeted dlr", Apgd(surrogate="dlr", targets=1)),
    ],
)
def test_apgd_decides_between_two_classes(name: str, classes: int, loss: str, search: Apgd):
    # In L1 its steps stop at a wall and do not tell apart the two steepest pixels, so there it is exact only
    # where that does not matter.
    assert search.loss_name(classes) == loss
    decides(replace(search, steps=STEPS[name]), problem(name, classes, duel=True, plain=name == "L1"))


@pytest.mark.parametrize(("name", "classes"), [("Linf", 3), ("Linf", 10), ("L2", 4)])
def test_targeted_apgd_decides_between_many_classes(name: str, classes: int):
    # Not so the untargeted forms: their losses need not lead to the closest class.
    decides(Apgd(steps=STEPS[name], surrogate="dlr", targets=9), problem(name, classes))


@EACH
@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_targeted_fab_finds_the_distance_to_one_per_cent(name: str, classes: int):
    decides(Fab(steps=6, targets=9), problem(name, classes, 1.01))


@EACH
@pytest.mark.parametrize("classes", [2, 4])
def test_fab_finds_the_distance_between_two_classes_to_one_per_cent(name: str, classes: int):
    # Of many it goes for the class that is closest without the box, which need not be the closest one inside.
    decides(Fab(steps=6, targets=0), problem(name, classes, 1.01, duel=True))


@pytest.mark.parametrize("classes", [2, 10])
def test_square_decides_between_two_classes_in_linf(classes: int):
    decides(Square(queries=150), problem("Linf", classes, duel=True))


@pytest.mark.parametrize("name", ["L2", "L1"])
def test_square_decides_where_its_pattern_is_the_shortest_way(name: str):
    # Elsewhere it comes close, if at all: its windows are at least three pixels wide.
    pattern = twin.pattern(name, 3, False)
    slope = torch.from_numpy(pattern if name == "L2" else np.sign(pattern)).float()
    x = 0.3 + 0.4 * torch.rand(PAIRS, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    x = (x - slope * ((x * slope).sum((1, 2, 3)) / slope.square().sum())[:, None, None, None]).contiguous()
    layer = nn.Linear(9, 2).requires_grad_(False)
    layer.weight.copy_(torch.stack([torch.zeros(9), slope.flatten()]))
    layer.bias.copy_(torch.tensor([0.0, -0.1]))
    distance = 0.1 / float(torch.linalg.vector_norm(slope.flatten(), DUAL[name]))
    model, y = nn.Sequential(nn.Flatten(), layer), torch.zeros(PAIRS, dtype=torch.int64)
    for factor in (1.02, 0.98):
        threat = Threat(NORMS[name](), repr(factor * distance))
        wrong = find_fooled(Square(queries=80), model, x, y, threat)
        assert int(wrong.sum()) == (PAIRS if factor > 1 else 0), factor


# Two pixels

CLASSES, CELLS = 3, 400
LENGTH = {
    "Linf": lambda d: d.abs().amax(1),
    "L2": lambda d: d.square().sum(1).sqrt(),
    "L1": lambda d: d.abs().sum(1),
}


def two_pixels() -> nn.Module:
    """Each class wins in places that no line separates."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, last = nn.Linear(2, 16), nn.Linear(16, CLASSES, bias=False)
        first.weight.data = 3 * torch.randn(16, 2)
        first.bias.data = torch.randn(16) - first.weight.data.sum(1) / 2
        last.weight.data = torch.randn(CLASSES, 16)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), last).requires_grad_(False)


@EACH
def test_ensemble_agrees_with_a_search_over_a_grid(name: str):
    model, norm, axis = two_pixels(), NORMS[name](), torch.linspace(0, 1, CELLS + 1)
    x = torch.rand(48, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    y, grid = model(x).argmax(1), torch.cartesian_prod(axis, axis)
    winner = model(grid.view(-1, 1, 1, 2)).argmax(1)
    assert (winner.bincount(minlength=CLASSES) > 0.1 * len(grid)).all()
    wins = [grid[winner != label] for label in range(CLASSES)]
    truth = torch.stack([LENGTH[name](wins[int(b)] - a.flatten()).min() for a, b in zip(x, y, strict=True)])
    eps = float(truth.median())
    ce, towards, fab, _ = AutoAttack().stages(norm)
    assert isinstance(ce, Apgd) and isinstance(towards, Apgd) and isinstance(fab, Fab)
    gradients = replace(ce, steps=15, restarts=1), replace(towards, steps=15), replace(fab, steps=10)
    attack = Cascade(attacks=(*gradients, Square(queries=30)))
    wrong = find_fooled(attack, model, x, y, Threat(norm, repr(eps)))
    # The grid may pass over the closest image by a cell, and the attacks are allowed two per cent.
    sure = (truth - eps).abs() > 0.02 * eps + 2 / CELLS
    assert int(sure.sum()) >= 40
    assert torch.equal(wrong[sure], truth[sure] <= eps)
