from __future__ import annotations

import pytest
import torch

from allrounder.rng import Rng


def test_same_address_draws_same_numbers():
    like = torch.empty(3, 1, 4, 4)
    assert torch.equal(Rng(0).fold_in("a", 1).normal(like), Rng(0).fold_in("a", 1).normal(like))


def test_other_addresses_and_seeds_draw_other_numbers():
    like = torch.empty(64)
    places = (Rng(0).fold_in("a", 1), Rng(0).fold_in("a", 2), Rng(1).fold_in("a", 1), Rng(0).fold_in("a1"))
    drawn = [rng.uniform(like) for rng in places]
    assert all(not torch.equal(p, q) for i, p in enumerate(drawn) for q in drawn[:i])


def test_number_and_its_text_are_different_addresses():
    assert Rng(0).fold_in(1).derive_seed() != Rng(0).fold_in("1").derive_seed()


def test_per_example_draws_do_not_depend_on_neighbours():
    rng = Rng(3).fold_in("start")
    together = rng.per_example(torch.tensor([5, 9, 2])).normal(torch.empty(3, 2, 2, 2))
    alone = rng.per_example(torch.tensor([9])).normal(torch.empty(1, 2, 2, 2))
    assert torch.equal(together[1], alone[0])


def test_draws_do_not_change_the_global_generator():
    before = torch.get_rng_state()
    Rng(0).normal(torch.empty(8))
    with Rng(0).seed_global():
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def test_seed_global_is_addressed():
    with Rng(0).fold_in("x").seed_global():
        first = torch.rand(4)
    with Rng(0).fold_in("x").seed_global():
        assert torch.equal(first, torch.rand(4))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_shard_gets_its_rows_of_the_whole_batch(kind: str):
    rng, whole = Rng(3).fold_in("x"), torch.empty(7, 2, 3)
    expected = getattr(rng, kind)(whole)
    first, second = rng.for_shard(range(0, 3), 7), rng.for_shard(range(3, 7), 7)
    assert torch.equal(getattr(first, kind)(whole[:3]), expected[:3])
    assert torch.equal(getattr(second, kind)(whole[3:]), expected[3:])
    some = second.select(torch.tensor([0, 3])).fold_in("more")
    assert torch.equal(getattr(some, kind)(whole[:2]), getattr(rng.fold_in("more"), kind)(whole)[[3, 6]])
    assert torch.equal(first.integers(3, 0, 9), rng.integers(7, 0, 9)[:3])
    assert torch.equal(first.integers(1, 0, 9), rng.integers(1, 0, 9)), "one number for the whole batch"
    assert torch.equal(getattr(first, kind)(torch.zeros(())), getattr(rng, kind)(torch.zeros(())))


def test_shard_refuses_draws_without_one_row_per_image():
    shard = Rng(3).for_shard(range(0, 3), 7)
    with pytest.raises(ValueError, match=r"a draw of 4 rows for 3 of a batch's 7 images.*whole_batch"):
        shard.uniform(torch.empty(4, 2))
    with pytest.raises(ValueError, match=r"cannot share a batch whose images are permuted.*whole_batch"):
        shard.permutation(3)
    assert len(shard.permutation(7)) == 7
