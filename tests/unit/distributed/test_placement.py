"""The division of learners and batches among ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allrounder.distributed import BatchShard, assign_ranks

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


@given(images=st.integers(1, 50), count=st.integers(1, 7))
def test_shards_partition_a_batch_or_replicate_a_small_one(images: int, count: int):
    shards = [BatchShard(index, count).for_batch(images) for index in range(count)]
    rows = [shard.indices(images) for shard in shards]
    assert sum(shard.num_reported(images) for shard in shards) == images, "each is reported once"
    if count > 1 and images < 2 * count:
        assert rows == [range(images)] * count
    else:
        assert count == 1 or min(map(len, rows)) >= 2, "one is what all have in common"
        assert [row for own in rows for row in own] == list(range(images))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_gradients_of_replicated_batches_are_averaged():
    def sum_(tensor: torch.Tensor) -> None:
        """Three ranks with the same."""
        tensor *= 3

    model = nn.Linear(2, 1)
    model(torch.ones(2, 2)).sum().backward()
    assert model.weight.grad is not None
    BatchShard(1, 3, sum_).for_batch(2).allreduce_grads_(model)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]
    BatchShard(1, 3, sum_).for_batch(6).allreduce_grads_(model, share=1 / 3)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]


def test_single_shard_keeps_gradients():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    before = model.weight.grad.clone()
    BatchShard().allreduce_grads_(model)
    assert torch.equal(model.weight.grad, before)
