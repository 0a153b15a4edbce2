"""What a training logs and saves: metrics, summed until an epoch is logged, and the states of all ranks.

Only rank 0 writes: the other ranks need no run folder, so the machines of a run need no common disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from allrounder.config.time import Clock
from allrounder.data.fingerprint import check_same_data
from allrounder.distributed import Placement, World
from allrounder.system.tensor_folders import read_tensors
from allrounder.training.run import Run
from allrounder.types import Loss, NamedTensors, Weights

Sums = dict[str, float]
IMAGES_PREFIX = "images."
"""Prefix of the number of images that a sum is over: a method may report a metric in some steps only."""
MAX_PENDING = 1000
"""The largest number of steps whose metrics stay on a device before they are read."""


@final
class EpochMetrics:
    """Per-learner sums over images, as plain numbers that JSON stores exactly, and a stopwatch."""

    def __init__(self, names: Sequence[str], *, lazy: bool = False):
        """Start at zero. With `lazy`, metrics are read from their device only when sums are asked for."""
        self.totals = {name: _zero_sums() for name in names}
        self.lazy = lazy
        self.pending: list[tuple[str, dict[str, Tensor], int]] = []
        self.lap_start = time.monotonic()

    def add(self, name: str, loss: Loss, images: int) -> None:
        """Add one step of a learner: the means over its batch, weighted by the number of images."""
        self.pending.append((name, {"loss": loss.total.detach(), **loss.parts}, images))
        if not self.lazy or len(self.pending) == MAX_PENDING:
            self._flush()

    @property
    def sums(self) -> dict[str, Sums]:
        """The sums of every learner since they were last popped."""
        self._flush()
        return self.totals

    def pop_sums(self, name: str) -> Sums:
        """Return a learner's sums and reset them."""
        sums = self.sums[name]
        self.totals[name] = _zero_sums()
        return sums

    def _flush(self) -> None:
        """Add pending metrics in their order, one step at a time, so that lazy sums round like eager ones."""
        for name, metrics, images in self.pending:
            sums = self.totals[name]
            for key, value in metrics.items():
                sums[key] = sums.get(key, 0.0) + float(value) * images
                sums[IMAGES_PREFIX + key] = sums.get(IMAGES_PREFIX + key, 0.0) + images
        self.pending.clear()

    def lap_seconds(self) -> float:
        """Return the seconds since the last call."""
        previous, self.lap_start = self.lap_start, time.monotonic()
        return round(self.lap_start - previous, 3)

    def load_sums(self, sums: Mapping[str, Mapping[str, float]]) -> None:
        """Restore the sums of a checkpoint; learners that are not in `sums` start at zero."""
        self.pending.clear()
        self.totals = {name: dict(sums.get(name, _zero_sums())) for name in self.totals}


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return each metric per image of the steps that reported it; 0 if none did."""
    totals = {key: total for key, total in sums.items() if not key.startswith(IMAGES_PREFIX)}
    return {key: total / (sums.get(IMAGES_PREFIX + key, 0.0) or 1.0) for key, total in totals.items()}


def add_sums(per_rank: Sequence[Mapping[str, float]]) -> Sums:
    """Add the sums of several ranks that share a learner."""
    keys = dict.fromkeys(key for sums in per_rank for key in sums)
    return {key: sum(sums.get(key, 0.0) for sums in per_rank) for key in keys}


def _zero_sums() -> Sums:
    return {"loss": 0.0, "accuracy": 0.0}


@final
@dataclass(eq=False)
class Checkpointer:
    """Collects the metrics and states of all ranks, and lets rank 0 write them.

    Every rank has one. Methods that communicate must be called by all ranks together.
    """

    run: Run
    world: World
    placement: Placement
    clock: Clock
    metrics: EpochMetrics
    epochs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Entries of the log that were not gathered yet."""
    comm_bytes: Counter[str] = field(default_factory=Counter[str])
    """Bytes sent between processes since they were last logged, by what they were."""
    last_epoch: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The newest logged epoch of every learner, on rank 0."""

    def is_due(self, t: int) -> bool:
        """Whether a checkpoint is saved after step t; always after the last step."""
        every = max(self.run.recipe.checkpoint.to_steps(self.clock), 1)
        return t % every == 0 or t == self.clock.total_steps

    def record_epoch(self, t: int, local: Mapping[str, Mapping[str, float]]) -> None:
        """Record the metrics of the epoch that ends with step t, and `local` facts of each learner, until
        they are gathered and written in learner order, as a single process would write them."""
        seconds = self.metrics.lap_seconds()
        for name, facts in local.items():
            sums = self.metrics.pop_sums(name)
            self.epochs.append({"t": t, "learner": name, "sums": sums, "facts": facts, "seconds": seconds})
        if self.world.size == 1:
            self.gather_notes(f"epoch {self.clock.epoch(t)}")

    def gather_notes(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """Wait for all ranks, write their recorded epochs, and return the facts of each rank."""
        note = {**facts, "epochs": self.epochs, "comm_bytes": self.world.bytes_sent()}
        notes = self.world.all_gather_object(what, note)
        self.epochs = []
        if self.world.is_main:
            for rank, note in enumerate(notes):
                # Rank 0 counts what crosses between learners itself, but not the gradients of other groups.
                counts = note["comm_bytes"].items()
                self.comm_bytes.update({kind: n for kind, n in counts if rank == 0 or kind == "gradients"})
            self._write_epochs([entry for note in notes for entry in note["epochs"]])
        return notes

    def save_checkpoint(self, t: int, states: Mapping[str, Weights], facts: Mapping[str, Any]) -> None:
        """Save the states of all learners after step t; `states` holds those that this rank leads. Delete
        best weights that `facts` do not mention."""
        notes = self.gather_notes(f"the checkpoint after step {t}", sums=self.metrics.sums)
        ranks = self.placement.ranks
        all_states = self._gather_states(states, ranks)
        self._log_comm_bytes(t)
        if self.world.is_main:
            sums = {name: add_sums([notes[rank]["sums"][name] for rank in ranks[name]]) for name in ranks}
            self.run.save_checkpoint(t, all_states, {**facts, "sums": sums})
            self.run.prune_best(facts.get("best"))

    def save_weights(
        self,
        which: str,
        t: int,
        global_weights: Weights,
        averaged: Mapping[str, Weights],
        live: Mapping[str, Weights],
        metadata: Mapping[str, Any],
    ) -> None:
        """Save the global weights and those of all learners as "best" or "last". For learners that this rank
        leads, `averaged` holds what they give to the mix, and `live` the weights of those with an average."""
        with_average = [task.name for task in self.run.recipe.tasks if task.average is not None]
        weights = {"global": global_weights, **self._gather_states(averaged, self.placement.ranks)}
        for name, tensors in self._gather_states(live, with_average).items():
            weights[f"{name}.live"] = tensors
        if which == "last":
            self._log_comm_bytes(t)
        if self.world.is_main:
            self.run.save_weights(which, t, weights, metadata)

    def restore(self, data_facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Weights]]:
        """Return the facts of the newest checkpoint, or of step 0, and the states of the local learners. The
        images must be those of the checkpoint."""
        path, facts = self.run.resume_point() if self.world.is_main else (None, {})
        if path is not None:
            check_same_data(self.run.folder, facts, data_facts)
        facts = self.gather_notes("the newest checkpoint", checkpoint=facts)[0]["checkpoint"]
        states: dict[str, Weights] = {}
        if facts["t"]:
            for name, ranks in self.placement.ranks.items():
                state = None if path is None else read_tensors(path, name)
                for rank in ranks:
                    local = self.world.send_state(state, 0, rank)
                    if local is not None:
                        states[name] = local
            led = [name for name in states if self.world.rank == self.placement.leader(name)]
            self.metrics.load_sums({name: facts["sums"][name] for name in led})
        if self.world.is_main:
            self.run.rewind(path, facts)
        return facts, states

    def receive_states(
        self, led: Mapping[str, NamedTensors], names: Iterable[str]
    ) -> Iterator[tuple[str, NamedTensors]]:
        """Send the tensors of the learners `names`, one after the other, from their leaders to rank 0, which
        yields them; other ranks yield nothing. All ranks must exhaust it."""
        for name in names:
            leader = self.placement.leader(name)
            received = self.world.send_state(led[name] if self.world.rank == leader else None, leader, 0)
            if received is not None:
                yield name, received

    def _gather_states(self, led: Mapping[str, Weights], names: Iterable[str]) -> dict[str, Weights]:
        """Return the tensors of the learners `names` on rank 0; empty on other ranks."""
        return {name: dict(state) for name, state in self.receive_states(led, names)}

    def _log_comm_bytes(self, t: int) -> None:
        """Log the bytes sent between processes since the last time, if there are several processes."""
        self.comm_bytes.update(self.world.bytes_sent())
        if self.world.size > 1 and self.world.is_main:
            counts = dict(sorted(self.comm_bytes.items()))
            self.run.log("comm_bytes", t=t, epoch=self.clock.epoch(t), **counts)
        self.comm_bytes.clear()

    def _write_epochs(self, entries: list[dict[str, Any]]) -> None:
        """Log one event per epoch and learner, combining the entries of ranks that share a learner."""
        names = list(self.placement.ranks)
        for t, position in sorted({(entry["t"], names.index(entry["learner"])) for entry in entries}):
            name = names[position]
            shared = [entry for entry in entries if (entry["t"], entry["learner"]) == (t, name)]
            facts = {**means(add_sums([entry["sums"] for entry in shared])), **shared[0]["facts"]}
            event = {"t": t, "epoch": self.clock.epoch(t), "learner": name, **facts}
            self.run.log("epoch", **event, seconds=shared[0]["seconds"])
            self.last_epoch[name] = event
