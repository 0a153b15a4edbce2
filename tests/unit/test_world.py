"""A world of one, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from allrounder.errors import WorldError
from allrounder.world import Placement, Seat, World
from tests.trainings import SOLO, go, recipe

WORLD = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("size", ["2", "3", "0"])
def test_a_launch_of_several_processes_is_refused_before_anything_is_written(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(WorldError, match=f"launched with WORLD_SIZE={size}, expected 1.* without torchrun"):
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
