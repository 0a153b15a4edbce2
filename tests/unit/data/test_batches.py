"""The batches of a split: complete, addressed, and in an order of their own in every epoch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.data.batches import Batches
from allrounder.rng import Rng
from tests.unit.data.test_base import tensors


@given(n=st.integers(1, 70), size=st.integers(1, 80), epoch=st.integers(1, 9))
def test_every_image_occurs_once_per_epoch_and_never_alone(n, size, epoch):
    split = tensors(n)
    batches = Batches(split, size, Rng(0))
    seen = [batches.at(epoch, step) for step in range(1, batches.steps + 1)]
    assert sorted(i for batch in seen for i in batch.index.tolist()) == list(range(n))
    for batch in seen:
        assert torch.equal(batch.x, split.fetch(batch.index))
        assert torch.equal(batch.y, split.labels[batch.index])
    lengths = [len(batch) for batch in seen]
    assert all(length == size for length in lengths[:-1])
    assert lengths[-1] <= size + 1 and (size == 1 or n == 1 or lengths[-1] > 1)


@pytest.mark.parametrize(
    ("n", "size", "lengths"),
    [
        (10, 5, [5, 5]),
        (12, 5, [5, 5, 2]),
        (11, 5, [5, 6]),
        (6, 5, [6]),
        (5, 8, [5]),
        (1, 8, [1]),
        (3, 1, [1, 1, 1]),
        (3, 2, [3]),
    ],
)
def test_a_lone_last_image_joins_the_batch_before_it(n, size, lengths):
    batches = Batches(tensors(n), size, Rng(0))
    assert batches.steps == len(lengths)
    assert [len(batches.at(1, step)) for step in range(1, batches.steps + 1)] == lengths


def test_the_order_differs_by_epoch_and_by_seed_and_is_the_same_by_address():
    def order(seed, epoch):
        batches = Batches(tensors(40), 40, Rng(seed).fold_in("batches"))
        return batches.at(epoch, 1).index.tolist()

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (1, 2, 3)]
    assert len(set(map(tuple, orders))) == 6
    assert order(1, 2) == orders[4]
    assert order(0, 2) == Rng(0).fold_in("batches", "order", 2).permutation(40).tolist()


def test_a_batch_does_not_depend_on_the_calls_before_it():
    batches = Batches(tensors(40), 7, Rng(0))
    wandering = [batches.at(epoch, step).index for epoch, step in ((1, 1), (3, 2), (1, 4), (3, 2), (2, 1))]
    for (epoch, step), index in zip(((1, 1), (3, 2), (1, 4), (3, 2), (2, 1)), wandering, strict=True):
        assert torch.equal(index, Batches(tensors(40), 7, Rng(0)).at(epoch, step).index)


def test_batches_do_not_use_the_global_generator():
    before = torch.get_rng_state()
    Batches(tensors(), 4, Rng(0)).at(1, 1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("epoch", "step"), [(0, 1), (1, 0), (1, 4), (-1, 1)])
def test_an_address_outside_the_epoch_is_refused(epoch, step):
    with pytest.raises(ValueError, match=f"epoch {epoch}, step {step}; expected epoch from 1, step 1 to 3"):
        Batches(tensors(12), 4, Rng(0)).at(epoch, step)


def test_batch_size_zero_is_refused():
    with pytest.raises(ValueError, match="got batch size 0 and 12 images, expected at least 1"):
        Batches(tensors(12), 0, Rng(0))
