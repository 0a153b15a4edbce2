"""The part of a batch that one rank takes, and the gradients of all parts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allrounder.distributed import BatchShard


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
