"""A world of one process, and the launches it refuses; several processes are in tests/distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from allrounder.distributed import BatchShard, Placement, World
from allrounder.errors import WorldError
from allrounder.training.setup import check_supports_distributed
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, SOLO, go, recipe

WORLD = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("size", ["2", "0"])
def test_launch_without_variables_is_refused_before_writing(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(WorldError, match=f"launched with WORLD_SIZE={size} and without RANK.*with torchrun"):
        go(recipe(SOLO), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [None, "1"])
def test_single_process_is_a_world_of_one(size: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    world = World.from_env()
    assert (world.rank, world.size) == (0, 1)
    assert torch.ones(1, device=world.device) == 1


def test_single_rank_trains_every_learner():
    placement = Placement({"linf": (0,), "natural": (0,)})
    assert placement.learners_on(0) == ("linf", "natural") and placement.learners_on(1) == ()
    assert placement.leader("natural") == 0
    assert WORLD.shard_for(placement, "linf") == BatchShard(0, 1)
    assert WORLD.shards(placement) == {"linf": BatchShard(), "natural": BatchShard()}


def test_learner_that_needs_other_runs_is_refused_on_several_ranks():
    init = 'init = { kind = "soup", runs = ["one", "two"] }\n'
    curved = LINF.replace("lr = 0.05", "lr = 0.05\nupdate = { kind = 'curve' }")
    curved = curved.replace("lr = 0.05", "lr = 0.05\noptimizer = { kind = 'sgd', weight_decay = 0 }")
    two = World(0, 2, torch.device("cpu"))
    check_supports_distributed(recipe(init + HEAD + curved), two)
    mixed = recipe(init + HEAD + curved + NATURAL + MIX)
    check_supports_distributed(mixed, WORLD)
    with pytest.raises(
        WorldError, match=r"learner linf needs the weights of .* one of 2 learners on 2 processes; train it"
    ):
        check_supports_distributed(mixed, two)


def test_broadcast_from_unknown_rank_is_refused():
    weights = {"w": torch.ones(2)}
    WORLD.broadcast_(weights, src=0)
    assert torch.equal(weights["w"], torch.ones(2))
    with pytest.raises(WorldError, match="broadcast from rank 1: expected a rank below the world size 1"):
        WORLD.broadcast_(weights, src=1)
