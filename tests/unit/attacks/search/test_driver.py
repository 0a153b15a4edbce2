from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.search.base import Search
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.attacks.square import Square
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes

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


def points(n: int = 14) -> Examples:
    x = torch.rand(n, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    natural = network(x)
    return Examples(x, natural.argmax(1), natural, torch.arange(100, 100 + n))


def hunt(search: Search, of: Examples, width: int = 4, plain=network) -> SearchResults:
    return SearchDriver(search, network, plain, THREAT, Rng(0), width).run(of)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_lane_finds_what_the_search_finds_side_by_side(search: Search):
    of = points()
    alone = search.run(network, of.x, of.y, THREAT, Rng(0).per_example(of.rows))
    found = hunt(search, of)
    assert alone.fooled is not None and 0 < int(alone.fooled.sum()) < len(of)
    assert torch.equal(found.predicted != of.y, alone.fooled) and found.done.all()
    assert torch.equal(found.x, alone.x) and torch.equal(found.predicted, network(found.x).argmax(1))


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_neither_order_nor_neighbours_nor_a_split_change_a_bit(search: Search):
    of = points()
    whole, order = hunt(search, of), Rng(7).permutation(len(of))
    shuffled = hunt(search, of.select(order))
    assert torch.equal(shuffled.x, whole.x[order])
    halves = [hunt(search, of.select(part)).x for part in torch.arange(len(of)).split(5)]
    assert torch.equal(torch.cat(halves), whole.x)


def test_a_broken_point_costs_nothing_more():
    of = points()
    search = Apgd(steps=50)
    found = hunt(search, of, width=1)
    robust = int((found.predicted == of.y).sum())
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
    assert torch.equal(found.predicted, of.y) and found.done.all()
    assert torch.equal(found.x, of.x)


@pytest.mark.parametrize("width", [4, 40])
def test_what_is_reported_as_settled_is_final(width: int):
    of, heard = points(), []
    lane = SearchDriver(Apgd(steps=4, surrogate="dlr", targets=3), network, network, THREAT, Rng(0), width)
    found = lane.run(of, lambda h: heard.append(replace(h, done=h.done.clone(), x=h.x.clone())))
    counts, forwards = [int(h.done.sum()) for h in heard], [h.passes.forwards for h in heard]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == len(of) and 0 < counts[-2] < len(of)
    assert forwards == sorted(set(forwards)) and heard[-1].passes == found.passes == lane.passes
    for h in heard:
        assert torch.equal(h.x[h.done], found.x[h.done])


def test_a_network_that_breaks_down_is_an_error_and_not_robustness():
    of = points()

    def hidden(x: Tensor) -> Tensor:
        """Its gradients are no numbers, which its logits do not show."""
        flat = (0 * x).sum(dim=(1, 2, 3), keepdim=True).sqrt()
        return network((x + flat).nan_to_num())

    for search, broken in ((Apgd(steps=3), lambda x: network(x) * float("nan")), (Fab(steps=3), hidden)):
        with pytest.raises(ThreatError, match=r"not finite"):
            SearchDriver(search, broken, network, THREAT, Rng(0), 4).run(of)


def test_no_points_are_no_work():
    of = points().select(torch.arange(0))
    found = hunt(Apgd(steps=3), of)
    assert len(found.done) == 0 and found.passes == Passes()


@pytest.mark.parametrize("search", [Apgd(steps=3, targets=2), Fab(steps=3), Fab(steps=3, targets=0)], ids=str)
def test_a_network_of_one_class_leaves_nothing_to_search(search: Search):
    x, heard = points().x, []
    of = Examples(x, torch.zeros(14, dtype=torch.int64), torch.zeros(14, 1).double(), torch.arange(14))
    found = SearchDriver(search, network, network, THREAT, Rng(0), 4).run(of, heard.append)
    assert search.num_rounds(1) == 0 and found.done.all() and heard == [found]
    assert torch.equal(found.x, x) and torch.equal(found.predicted, of.y) and found.passes == Passes()
