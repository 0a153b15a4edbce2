"""The assignment of learners to ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.distributed import assign_ranks

COST = {"linf": 33, "natural": 3, "l2": 33}
NAMES = tuple(COST)


@pytest.mark.parametrize(
    ("size", "ranks"),
    [
        (1, {"linf": (0,), "natural": (0,), "l2": (0,)}),
        (2, {"linf": (0,), "natural": (0,), "l2": (1,)}),
        (3, {"linf": (0,), "natural": (1,), "l2": (2,)}),
        (4, {"linf": (0, 1), "natural": (2,), "l2": (3,)}),
        (6, {"linf": (0, 1, 2), "natural": (3,), "l2": (4, 5)}),
    ],
)
def test_ranks_are_assigned_by_cost(size: int, ranks: dict[str, tuple[int, ...]]):
    placement = assign_ranks(NAMES, size, COST)
    assert dict(placement.ranks) == ranks and tuple(placement.ranks) == NAMES
    assert not placement.idle_ranks(size)


def test_unshardable_learner_gets_one_rank():
    assert assign_ranks(NAMES, 5, COST, unshardable=["linf"]).ranks["linf"] == (0,)
    placement = assign_ranks(NAMES, 5, COST, unshardable=NAMES)
    assert dict(placement.ranks) == {"linf": (0,), "natural": (1,), "l2": (2,)}
    assert placement.idle_ranks(5) == (3, 4) and placement.followers() == frozenset()


def test_no_learner_gets_more_ranks_than_its_batches_allow():
    placement = assign_ranks(NAMES, 9, COST, max_ranks=2)
    assert [len(ranks) for ranks in placement.ranks.values()] == [2, 2, 2]
    assert placement.followers() == {1, 3, 5} and placement.idle_ranks(9) == (6, 7, 8)


@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=6), size=st.integers(1, 8))
def test_every_learner_is_placed_and_work_is_balanced(costs: list[int], size: int):
    cost = {f"task{number}": cost for number, cost in enumerate(costs)}
    placement = assign_ranks(tuple(cost), size, cost)
    assert tuple(placement.ranks) == tuple(cost)
    work = [sum(cost[name] for name in placement.learners_on(rank)) for rank in range(size)]
    if size <= len(costs):
        assert all(len(ranks) == 1 for ranks in placement.ranks.values())
        assert max(work) - min(work) <= max(costs), "or the largest would be better off elsewhere"
    else:
        assert sorted(rank for ranks in placement.ranks.values() for rank in ranks) == list(range(size))
