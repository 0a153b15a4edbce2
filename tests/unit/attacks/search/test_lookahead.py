"""Idle rows of a lane look ahead: fewer passes, and not a bit of difference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.search.base import RoundInit
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.attacks.search.lookahead import LookAhead
from allrounder.attacks.square import Square
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.unit.attacks.search.test_driver import network, points

THREATS = pytest.mark.parametrize("text", ["Linf:0.2", "L2:1.0", "L1:5"])


def hunt(search: Square, of: Examples, text: str, width: int, plain=network) -> SearchResults:
    return SearchDriver(search, network, plain, Threat.parse(text), Rng(0), width).run(of)


@THREATS
def test_a_wide_lane_finds_the_same_with_fewer_passes(text: str):
    of, search = points(14).select(torch.arange(8, 14)), Square(queries=30, restarts=2)
    one_by_one = hunt(search, of, text, 1)
    broken = one_by_one.predicted != of.y
    assert 0 < int(broken.sum()) < len(of)
    for width in (2, 5, 9, 40):
        wide = hunt(search, of, text, width)
        assert torch.equal(wide.x, one_by_one.x) and torch.equal(wide.predicted, one_by_one.predicted)
    # Without looking ahead, a point that stands takes a pass for each of its questions.
    alone = of.select((~broken).nonzero().squeeze(1)[:1])
    assert hunt(Square(queries=30), alone, text, 40).passes.forwards < 31 / 2
    assert hunt(Square(queries=30), alone, text, 1).passes.forwards == 31


def test_what_is_not_confirmed_goes_on_as_if_one_by_one():
    of, search = points(14).select(torch.arange(8, 14)), Square(queries=40)
    refused: set[int] = set()

    def stubborn(x: Tensor) -> Tensor:
        # Refuses the first find of every point, known by the image it is closest to.
        logits = network(x)
        closest = torch.cdist(x.flatten(1), of.x.flatten(1)).argmin(1).tolist()
        for row, point in enumerate(closest):
            if point not in seen and int(logits[row].argmax()) != int(of.y[point]):
                logits[row] = of.natural[point]
                refused.add(point)
        seen.update(refused)
        return logits

    found: list[SearchResults] = []
    for width in (1, 7):
        seen: set[int] = set()
        found.append(hunt(search, of, "Linf:0.2", width, stubborn))
    assert refused
    assert torch.equal(found[0].x, found[1].x) and torch.equal(found[0].predicted, found[1].predicted)


def test_rows_are_dealt_in_turn_and_only_answers_before_a_change_count():
    of, search, threat = points(4), Square(queries=9), Threat.parse("Linf:0.05")
    rows = torch.arange(4)
    rng = Rng(0).per_example(rows)
    state = search.begin(RoundInit(of.x, of.y, of.natural, threat, rng, 0))
    state["query"] += torch.tensor([3, 0, 5, 0])
    ahead = LookAhead(search, state, [0, 2], 4)
    assert ahead.rows == {0: [0, 1], 2: [2, 3]}
    assert ahead.slots.tolist() == [0, 0, 2, 2]
    assert ahead.state["query"].tolist() == [3, 4, 5, 6]
    after = ahead.state | {
        "query": ahead.state["query"] + 1,
        "margin": torch.tensor([1.0, 2.0, 3.0, 4.0]).double(),
    }
    # The first slot's own answer changed something, so the one ahead does not count; the other's did not.
    new, last = ahead.follow(state, after, [True, True, False, False])
    assert last[0] == 0 and last[2] == 3
    assert new["query"][0] == 4 and new["query"][2] == 7
    assert new["margin"][0] == 1 and new["margin"][2] == 4
    assert ahead.state["query"].tolist() == [4, 5, 7, 8]


def test_a_round_that_ends_early_is_an_error_and_not_a_number(monkeypatch: pytest.MonkeyPatch):
    of = points(3)
    monkeypatch.setattr(Apgd, "num_queries", lambda search: 5)
    monkeypatch.setattr(Apgd, "is_finished", lambda search, state: state["query"] >= 4)
    with pytest.raises(ThreatError, match="ended a round after 4 queries, expected 5"):
        SearchDriver(Apgd(steps=4), network, network, Threat.parse("Linf:1e-9"), Rng(0), 2).run(of)
