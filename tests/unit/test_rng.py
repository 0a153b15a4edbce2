from __future__ import annotations

import pytest
import torch

from allrounder.rng import Draws


def test_the_same_address_draws_the_same_numbers():
    like = torch.empty(3, 1, 4, 4)
    assert torch.equal(Draws(0).at("a", 1).normal(like), Draws(0).at("a", 1).normal(like))


def test_other_addresses_and_seeds_draw_other_numbers():
    like = torch.empty(64)
    places = (Draws(0).at("a", 1), Draws(0).at("a", 2), Draws(1).at("a", 1), Draws(0).at("a1"))
    drawn = [draws.uniform(like) for draws in places]
    assert all(not torch.equal(p, q) for i, p in enumerate(drawn) for q in drawn[:i])


def test_a_number_and_its_text_are_different_addresses():
    assert Draws(0).at(1).number() != Draws(0).at("1").number()


def test_per_example_draws_do_not_depend_on_neighbours():
    draws = Draws(3).at("start")
    together = draws.per_example(torch.tensor([5, 9, 2])).normal(torch.empty(3, 2, 2, 2))
    alone = draws.per_example(torch.tensor([9])).normal(torch.empty(1, 2, 2, 2))
    assert torch.equal(together[1], alone[0])


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    Draws(0).normal(torch.empty(8))
    with Draws(0).ambient():
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())


def test_ambient_draws_are_addressed():
    with Draws(0).at("x").ambient():
        first = torch.rand(4)
    with Draws(0).at("x").ambient():
        assert torch.equal(first, torch.rand(4))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_shard_gets_its_rows_of_what_the_whole_batch_would(kind: str):
    draws, whole = Draws(3).at("x"), torch.empty(7, 2, 3)
    expected = getattr(draws, kind)(whole)
    first, second = draws.sharded(range(0, 3), 7), draws.sharded(range(3, 7), 7)
    assert torch.equal(getattr(first, kind)(whole[:3]), expected[:3])
    assert torch.equal(getattr(second, kind)(whole[3:]), expected[3:])
    some = second.of_rows(torch.tensor([0, 3])).at("more")
    assert torch.equal(getattr(some, kind)(whole[:2]), getattr(draws.at("more"), kind)(whole)[[3, 6]])
    assert torch.equal(first.integers(3, 0, 9), draws.integers(7, 0, 9)[:3])
    assert torch.equal(first.integers(1, 0, 9), draws.integers(1, 0, 9)), "one number for the whole batch"
    assert torch.equal(getattr(first, kind)(torch.zeros(())), getattr(draws, kind)(torch.zeros(())))


def test_a_shard_refuses_draws_that_are_not_one_for_every_image():
    shard = Draws(3).sharded(range(0, 3), 7)
    with pytest.raises(ValueError, match=r"a draw of 4 rows for 3 of a batch's 7 images.*whole_batch"):
        shard.uniform(torch.empty(4, 2))
    with pytest.raises(ValueError, match=r"change places cannot be shared.*whole_batch"):
        shard.permutation(3)
    assert len(shard.permutation(7)) == 7
