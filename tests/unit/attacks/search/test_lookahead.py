"""Unused rows of a batch look ahead: fewer passes, and identical results."""

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
from tests.unit.attacks.search.test_driver import make_examples, network

THREATS = pytest.mark.parametrize("text", ["Linf:0.2", "L2:1.0", "L1:5"])


def run_search(search: Square, examples: Examples, text: str, width: int, plain=network) -> SearchResults:
    return SearchDriver(search, network, plain, Threat.parse(text), Rng(0), width).run(examples)


@THREATS
def test_lookahead_finds_the_same_with_fewer_passes(text: str):
    examples, search = make_examples(14).select(torch.arange(8, 14)), Square(queries=30, restarts=2)
    one_by_one = run_search(search, examples, text, 1)
    fooled = one_by_one.predicted != examples.y
    assert 0 < int(fooled.sum()) < len(examples)
    for width in (2, 5, 9, 40):
        wide = run_search(search, examples, text, width)
        assert torch.equal(wide.x, one_by_one.x) and torch.equal(wide.predicted, one_by_one.predicted)
    # Without lookahead, a robust example takes a pass for each query.
    alone = examples.select((~fooled).nonzero().squeeze(1)[:1])
    assert run_search(Square(queries=30), alone, text, 40).passes.forwards < 31 / 2
    assert run_search(Square(queries=30), alone, text, 1).passes.forwards == 31


def test_lookahead_resumes_after_an_unconfirmed_candidate():
    examples, search = make_examples(14).select(torch.arange(8, 14)), Square(queries=40)
    refused: set[int] = set()

    def stubborn(x: Tensor) -> Tensor:
        # Refuses the first find of every point, known by the image it is closest to.
        logits = network(x)
        closest = torch.cdist(x.flatten(1), examples.x.flatten(1)).argmin(1).tolist()
        for row, point in enumerate(closest):
            if point not in seen and int(logits[row].argmax()) != int(examples.y[point]):
                logits[row] = examples.natural[point]
                refused.add(point)
        seen.update(refused)
        return logits

    result: list[SearchResults] = []
    for width in (1, 7):
        seen: set[int] = set()
        result.append(run_search(search, examples, "Linf:0.2", width, stubborn))
    assert refused
    assert torch.equal(result[0].x, result[1].x) and torch.equal(result[0].predicted, result[1].predicted)


def test_only_queries_up_to_the_first_accepted_one_count():
    examples, search, threat = make_examples(4), Square(queries=9), Threat.parse("Linf:0.05")
    rows = torch.arange(4)
    rng = Rng(0).per_example(rows)
    state = search.begin(RoundInit(examples.x, examples.y, examples.natural, threat, rng, 0))
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


def test_round_that_ends_early_raises_an_error(monkeypatch: pytest.MonkeyPatch):
    examples = make_examples(3)
    monkeypatch.setattr(Apgd, "num_queries", lambda search: 5)
    monkeypatch.setattr(Apgd, "is_finished", lambda search, state: state["query"] >= 4)
    with pytest.raises(ThreatError, match="ended a round after 4 queries, expected 5"):
        SearchDriver(Apgd(steps=4), network, network, Threat.parse("Linf:1e-9"), Rng(0), 2).run(examples)
