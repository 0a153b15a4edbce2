"""Who trains what, a world of one, and what it refuses; several processes are in tests/distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allrounder.distributed import Placement, Seat, World, deal
from allrounder.errors import WorldError
from allrounder.training.setup import check_alone
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, SOLO, go, recipe

WORLD = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("size", ["2", "0"])
def test_a_launch_without_its_variables_is_refused_before_anything_is_written(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(WorldError, match=f"launched with WORLD_SIZE={size} and without RANK.*with torchrun"):
        go(recipe(SOLO), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [None, "1"])
def test_one_process_is_a_world_of_one(size: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    world = World.from_env()
    assert (world.rank, world.size) == (0, 1)
    assert torch.ones(1, device=world.device) == 1


def test_every_learner_sits_on_the_only_rank():
    placement = Placement.alone(["linf", "natural"])
    assert placement.local(0) == ("linf", "natural") and placement.local(1) == ()
    assert placement.leader("natural") == 0
    assert WORLD.seat(placement, "linf") == Seat(0, 1)
    assert WORLD.seats(placement) == {"linf": Seat(), "natural": Seat()}


def test_a_learner_that_may_not_find_the_runs_it_moves_between_is_refused():
    init = 'init = { kind = "soup", runs = ["one", "two"] }\n'
    curved = LINF.replace("lr = 0.05", "lr = 0.05\nupdate = { kind = 'curve' }")
    curved = curved.replace("lr = 0.05", "lr = 0.05\noptimizer = { kind = 'sgd', weight_decay = 0 }")
    two = World(0, 2, torch.device("cpu"))
    check_alone(recipe(init + HEAD + curved), two)
    mixed = recipe(init + HEAD + curved + NATURAL + MIX)
    check_alone(mixed, WORLD)
    with pytest.raises(
        WorldError, match=r"learner linf moves between .* one of 2 in a world of 2 .*train it"
    ):
        check_alone(mixed, two)


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
def test_ranks_are_dealt_by_cost(size: int, ranks: dict[str, tuple[int, ...]]):
    placement = deal(NAMES, size, COST)
    assert dict(placement.ranks) == ranks and tuple(placement.ranks) == NAMES
    assert not placement.idle(size)


def test_a_learner_that_needs_whole_batches_gets_one_rank():
    assert deal(NAMES, 5, COST, whole=["linf"]).ranks["linf"] == (0,)
    placement = deal(NAMES, 5, COST, whole=NAMES)
    assert dict(placement.ranks) == {"linf": (0,), "natural": (1,), "l2": (2,)}
    assert placement.idle(5) == (3, 4) and placement.followers() == frozenset()


def test_no_learner_gets_more_ranks_than_its_batches_allow():
    placement = deal(NAMES, 9, COST, most=2)
    assert [len(ranks) for ranks in placement.ranks.values()] == [2, 2, 2]
    assert placement.followers() == {1, 3, 5} and placement.idle(9) == (6, 7, 8)


@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=6), size=st.integers(1, 8))
def test_every_learner_is_seated_and_no_rank_is_far_from_the_mean(costs: list[int], size: int):
    cost = {f"task{number}": cost for number, cost in enumerate(costs)}
    placement = deal(tuple(cost), size, cost)
    assert tuple(placement.ranks) == tuple(cost)
    work = [sum(cost[name] for name in placement.local(rank)) for rank in range(size)]
    if size <= len(costs):
        assert all(len(ranks) == 1 for ranks in placement.ranks.values())
        assert max(work) - min(work) <= max(costs), "or the largest would be better off elsewhere"
    else:
        assert sorted(rank for ranks in placement.ranks.values() for rank in ranks) == list(range(size))


@given(images=st.integers(1, 50), count=st.integers(1, 7))
def test_the_seats_of_a_group_have_every_image_once_or_all_of_them_where_they_are_few(
    images: int, count: int
):
    seats = [Seat(index, count).at(images) for index in range(count)]
    rows = [seat.rows(images) for seat in seats]
    assert sum(seat.counts(images) for seat in seats) == images, "each is reported once"
    if count > 1 and images < 2 * count:
        assert rows == [range(images)] * count
    else:
        assert count == 1 or min(map(len, rows)) >= 2, "one is what all have in common"
        assert [row for some in rows for row in some] == list(range(images))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_where_all_ranks_have_all_images_their_gradients_count_once():
    def sum_(tensor: torch.Tensor) -> None:
        """Three ranks with the same."""
        tensor *= 3

    model = nn.Linear(2, 1)
    model(torch.ones(2, 2)).sum().backward()
    assert model.weight.grad is not None
    Seat(1, 3, sum_).at(2).mean_(model)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]
    Seat(1, 3, sum_).at(6).mean_(model, share=1 / 3)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]


def test_nobody_else_can_speak():
    weights = {"w": torch.ones(2)}
    WORLD.broadcast_(weights, src=0)
    assert torch.equal(weights["w"], torch.ones(2))
    with pytest.raises(WorldError, match="rank 1 was asked to speak in a world of 1"):
        WORLD.broadcast_(weights, src=1)


def test_a_seat_of_one_leaves_gradients_alone():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    before = model.weight.grad.clone()
    Seat().mean_(model)
    assert torch.equal(model.weight.grad, before)
