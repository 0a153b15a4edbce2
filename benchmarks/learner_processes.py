"""Learners in separate processes of one thread each that do not communicate."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import final

import torch
from harness import SHAPES, cpu_world, paper_recipe, synthetic

from allrounder import Rng
from allrounder.config.time import Clock
from allrounder.data.batches import Batches
from allrounder.distributed import Placement
from allrounder.nn.state import weights_of
from allrounder.training.checkpoint import EpochMetrics
from allrounder.training.learner import Learner
from allrounder.training.mixer import Mixer
from allrounder.training.setup import build_initial_model


def run_learner(pipe: Connection, barrier: Barrier, variant: str, kind: str, batch: int, rank: int) -> None:
    """The process of one learner: takes one step per request and replies with its seconds."""
    torch.set_num_threads(1)
    recipe = paper_recipe(variant, kind, batch)
    data = synthetic(SHAPES[kind], batch)
    batches = Batches(data.train, batch, Rng(0))
    clock = Clock(recipe.epochs, batches.steps, recipe.pace)
    placement = Placement({name: (number,) for number, name in enumerate(recipe.names)})
    world = cpu_world(rank, len(recipe.names))
    task = recipe.tasks[rank]
    model = build_initial_model(recipe, None, data)
    mixer = Mixer(recipe.effective_mix, placement, weights_of(model), world, clock)
    shard = world.shard_for(placement, task.name)
    assert shard is not None
    learner = Learner(task, model, shard, recipe.seed, clock)
    metrics = EpochMetrics(recipe.names)
    for t, request in enumerate(iter(pipe.recv, "stop"), start=1):
        if request == "together":
            barrier.wait()
        begin = time.perf_counter()
        images = batches.at(clock.epoch(t), clock.step_in_epoch(t))
        metrics.add(task.name, learner.step(images, t), len(images))
        mixer.update(task.name, learner.averaged_weights(), t)
        pipe.send(time.perf_counter() - begin)


@final
class LearnerProcesses:
    """One process per learner of a recipe, or one per entry of `ranks`, which may repeat a learner."""

    def __init__(self, variant: str, kind: str, batch: int, ranks: Sequence[int] | None = None) -> None:
        if ranks is None:
            ranks = range(len(paper_recipe(variant, kind, batch).names))
        context = multiprocessing.get_context("spawn")
        self.barrier = context.Barrier(len(ranks))  # kept alive, because the processes only have its name
        self.pipes: list[Connection] = []
        for rank in ranks:
            parent, child = context.Pipe()
            arguments = (child, self.barrier, variant, kind, batch, rank)
            context.Process(target=run_learner, args=arguments, daemon=True).start()
            self.pipes.append(parent)

    def ideal_seconds(self) -> float:
        """The ideal time of a step: that of the slowest learner alone, or the total divided by the cores."""
        seconds: list[float] = []
        for pipe in self.pipes:
            pipe.send("alone")
            seconds.append(pipe.recv())
        return max(max(seconds), sum(seconds) / len(os.sched_getaffinity(0)))

    def concurrent_seconds(self) -> float:
        """The time of a step of all learners at the same time."""
        for pipe in self.pipes:
            pipe.send("together")
        return max(pipe.recv() for pipe in self.pipes)

    def stop(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send("stop")
