from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.lanes import Hunted, Lane, Points
from allrounder.attacks.search import Search
from allrounder.attacks.square import Square
from allrounder.errors import ThreatError
from allrounder.rng import Draws
from allrounder.threats import Threat

THREAT = Threat.parse("Linf:0.08")
SEARCHES = [
    Apgd(steps=6),
    Apgd(steps=4, surrogate="dlr", targets=3),
    Fab(steps=4, targets=2),
    Square(queries=15),
]
W = torch.randn(5, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def network(x: Tensor) -> Tensor:
    """Looks at every image by itself, so that a batch changes no bit of its answers."""
    return torch.stack([(W * image.flatten()).sum(1) + image.square().sum() * W[:, 0] for image in x])


def points(n: int = 14) -> Points:
    x = torch.rand(n, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    natural = network(x)
    return Points(x, natural.argmax(1), natural, torch.arange(100, 100 + n))


def some(of: Points, index: Tensor) -> Points:
    return Points(of.x[index], of.y[index], of.natural[index], of.rows[index])


def hunt(search: Search, of: Points, width: int = 4, plain=network) -> Hunted:
    return Lane(search, network, plain, THREAT, Draws(0), width).hunt(of)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_lane_finds_what_the_search_finds_side_by_side(search: Search):
    of = points()
    alone = search.run(network, of.x, of.y, THREAT, Draws(0).per_example(of.rows))
    found = hunt(search, of)
    assert alone.fooled is not None and 0 < int(alone.fooled.sum()) < len(of)
    assert torch.equal(found.broken, alone.fooled)
    assert torch.equal(found.x, alone.x)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_neither_order_nor_neighbours_nor_a_split_change_a_bit(search: Search):
    of = points()
    whole, order = hunt(search, of), Draws(7).permutation(len(of))
    shuffled = hunt(search, some(of, order))
    assert torch.equal(shuffled.x, whole.x[order])
    halves = [hunt(search, some(of, part)).x for part in torch.arange(len(of)).split(5)]
    assert torch.equal(torch.cat(halves), whole.x)


def test_a_broken_point_costs_nothing_more():
    of = points()
    search = Apgd(steps=50)
    found = hunt(search, of, width=1)
    robust = int((~found.broken).sum())
    assert 0 < robust < len(of)
    assert found.passes.backwards < 51 * len(of)
    assert found.passes.backwards >= 51 * robust


def test_what_the_plain_network_does_not_confirm_is_not_broken():
    of = points()
    labels = {tuple(image.flatten().tolist()): None for image in of.x}
    assert len(labels) == len(of)

    def stubborn(x: Tensor) -> Tensor:
        # Whatever it is shown, it answers with the natural logits of the closest image.
        closest = torch.cdist(x.flatten(1), of.x.flatten(1)).argmin(1)
        return of.natural[closest]

    found = hunt(Apgd(steps=6), of, plain=stubborn)
    assert not found.broken.any()
    assert torch.equal(found.x, of.x)


def test_every_point_is_reported_once():
    of, heard = points(), []
    lane = Lane(Apgd(steps=6), network, network, THREAT, Draws(0), 4)
    found = lane.hunt(of, lambda done, broken: heard.append((done, broken)))
    assert heard[-1] == (len(of), int(found.broken.sum()))
    assert heard == sorted(heard)


def test_a_network_that_breaks_down_is_an_error_and_not_robustness():
    of = points()
    with pytest.raises(ThreatError, match=r"not finite|NaN"):
        Lane(Apgd(steps=3), lambda x: network(x) * float("nan"), network, THREAT, Draws(0), 4).hunt(of)


def test_no_points_are_no_work():
    of = some(points(), torch.arange(0))
    found = hunt(Apgd(steps=3), of)
    assert len(found.broken) == 0 and found.passes.forwards == 0
