"""Learners in processes of their own, with nothing in common but the clock: one thread each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import final

import torch
from machines import SHAPES, here, recipe_of, synthetic

from allrounder import Draws
from allrounder.config.time import Clock
from allrounder.data.base import Batches
from allrounder.distributed import Placement
from allrounder.nn.state import weights_of
from allrounder.recipe.mix import Mixer
from allrounder.training.learner import Learner
from allrounder.training.metrics import Meter
from allrounder.training.starting import starting_network


def seated(talk: Connection, together: Barrier, variant: str, kind: str, batch: int, rank: int) -> None:
    """A process of one learner: takes the steps it is asked for, and answers how long they took."""
    torch.set_num_threads(1)
    recipe, data = recipe_of(variant, kind, batch), synthetic(SHAPES[kind], batch)
    batches = Batches(data.train, batch, Draws(0))
    clock = Clock(recipe.epochs, batches.steps, recipe.pace)
    placement = Placement({name: (number,) for number, name in enumerate(recipe.names)})
    world, task = here(rank, len(recipe.names)), recipe.tasks[rank]
    start = starting_network(recipe, None, data)
    mixer = Mixer(recipe.mixing, placement, weights_of(start), world, clock)
    learner = Learner(task, start, world.seat(placement, task.name), recipe.seed, clock)
    meter = Meter(recipe.names)
    for t, how in enumerate(iter(talk.recv, "stop"), start=1):
        if how == "together":
            together.wait()
        begin = time.perf_counter()
        taken = batches.at(clock.epoch(t), (t - 1) % clock.steps + 1)
        meter.count(task.name, learner.step(taken, t), len(taken))
        mixer.observe(task.name, learner.weights(), t)
        talk.send(time.perf_counter() - begin)


@final
class Crew:
    """One process per learner, or for each of some learners, of which one may come twice."""

    def __init__(self, variant: str, kind: str, batch: int, ranks: Sequence[int] | None = None) -> None:
        seats = range(len(recipe_of(variant, kind, batch).names)) if ranks is None else ranks
        context = multiprocessing.get_context("spawn")
        self.together = context.Barrier(len(seats))  # kept, as the processes only know its name
        self.ends: list[Connection] = []
        for rank in seats:
            ours, theirs = context.Pipe()
            context.Process(
                target=seated, args=(theirs, self.together, variant, kind, batch, rank), daemon=True
            ).start()
            self.ends.append(ours)

    def ideal(self) -> float:
        """Every learner by itself: the longest, or all of them divided by the cores."""
        seconds: list[float] = []
        for end in self.ends:
            end.send("alone")
            seconds.append(end.recv())
        return max(max(seconds), sum(seconds) / len(os.sched_getaffinity(0)))

    def measured(self) -> float:
        """All at once."""
        for end in self.ends:
            end.send("together")
        return max(end.recv() for end in self.ends)

    def stop(self) -> None:
        """Let the processes end."""
        for end in self.ends:
            end.send("stop")
