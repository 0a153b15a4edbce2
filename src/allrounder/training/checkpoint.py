"""Rank 0 writes the log, the checkpoints and the weights of all ranks.

The other ranks need no run folder, so the machines of a run need no common disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, final

from allrounder.config.time import Clock
from allrounder.data.fingerprint import check_same_data
from allrounder.distributed import Placement, World
from allrounder.system.tensor_folders import read_tensors
from allrounder.training.metrics import EpochMetrics, add_sums, means
from allrounder.training.run import Run
from allrounder.types import Weights


@final
class Checkpointer:
    """Collects the metrics and states of all ranks, and lets rank 0 write them.

    Every rank has one. Methods that communicate must be called by all ranks together.
    """

    def __init__(self, run: Run, world: World, placement: Placement, clock: Clock, metrics: EpochMetrics):
        """Start with nothing to write."""
        self.run = run
        self.world = world
        self.placement = placement
        self.clock = clock
        self.metrics = metrics
        self.every = max(run.recipe.checkpoint.to_steps(clock), 1)
        self.epochs: list[dict[str, Any]] = []
        """Entries of the log that were not gathered yet."""
        self.comm_bytes: Counter[str] = Counter()
        """Bytes sent between processes since they were last logged, by what they were."""

    def is_due(self, t: int) -> bool:
        """Whether a checkpoint is saved after step t; always after the last step."""
        return t % self.every == 0 or t == self.clock.total_steps

    def record_epoch(self, t: int, local: Mapping[str, Mapping[str, float]]) -> None:
        """Record the metrics of the epoch that ends with step t; `local` holds facts of each local learner.

        They are written in learner order, as a single process would write them, once they are gathered.
        """
        seconds = self.metrics.lap_seconds()
        for name, facts in local.items():
            entry = {"t": t, "learner": name, "sums": self.metrics.pop_sums(name), "facts": {**facts}}
            self.epochs.append({**entry, "seconds": seconds})
        if self.world.size == 1:
            self.gather_notes(f"epoch {self.clock.epoch(t)}")

    def gather_notes(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """Wait for all ranks, write their recorded epochs, and return the facts of each rank."""
        notes = self.world.all_gather_object(
            what, {**facts, "epochs": self.epochs, "comm_bytes": self.world.bytes_sent()}
        )
        self.epochs = []
        if self.world.is_main:
            for rank, note in enumerate(notes):
                # Rank 0 counts what crosses between learners itself, but not the gradients of other groups.
                counts = note["comm_bytes"].items()
                self.comm_bytes.update({kind: n for kind, n in counts if rank == 0 or kind == "gradients"})
            self._write_epochs([entry for note in notes for entry in note["epochs"]])
        return notes

    def save_checkpoint(self, t: int, states: Mapping[str, Weights], facts: Mapping[str, Any]) -> None:
        """Save the states of all learners after step t, then delete best weights that `facts` do not mention.

        `states` holds those of the learners that this rank leads.
        """
        notes = self.gather_notes(f"the checkpoint after step {t}", sums=self.metrics.sums)
        ranks = self.placement.ranks
        all_states = self._gather_states(states, ranks)
        self._log_comm_bytes(t)
        if self.world.is_main:
            sums = {name: add_sums([notes[rank]["sums"][name] for rank in ranks[name]]) for name in ranks}
            self.run.save_checkpoint(t, all_states, {**facts, "sums": sums})
            self._prune_best(facts)

    def save_weights(
        self,
        which: str,
        t: int,
        global_weights: Weights,
        averaged: Mapping[str, Weights],
        live: Mapping[str, Weights],
        metadata: Mapping[str, Any],
    ) -> None:
        """Save the global weights and those of all learners as "best" or "last".

        `averaged` holds what each learner that this rank leads gives to the mix; `live` the weights that are
        trained, of those that keep an average.
        """
        with_average = [task.name for task in self.run.recipe.tasks if task.average is not None]
        weights = {"global": global_weights, **self._gather_states(averaged, self.placement.ranks)}
        for name, tensors in self._gather_states(live, with_average).items():
            weights[f"{name}.live"] = tensors
        if which == "last":
            self._log_comm_bytes(t)
        if self.world.is_main:
            self.run.save_weights(which, t, weights, metadata)

    def restore(self, data_facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Weights]]:
        """Return the facts of the newest checkpoint and the states of the local learners.

        Without a checkpoint, the facts are those of step 0. The images must be those of the checkpoint.
        """
        path, facts = self.run.resume_point() if self.world.is_main else (None, {})
        if path is not None:
            check_same_data(self.run.folder, facts, data_facts)
        facts = self.gather_notes("the newest checkpoint", checkpoint=facts)[0]["checkpoint"]
        states: dict[str, Weights] = {}
        if facts["t"]:
            for name in self.placement.ranks:
                state = self._scatter_state(name, None if path is None else read_tensors(path, name))
                if state is not None:
                    states[name] = state
            led = [name for name in states if self.world.rank == self.placement.leader(name)]
            self.metrics.load_sums({name: facts["sums"][name] for name in led})
        if self.world.is_main:
            self.run.rewind(path, facts["metrics_bytes"])
            self._prune_best(facts)
        return facts, states

    def _prune_best(self, facts: Mapping[str, Any]) -> None:
        best = facts.get("best")
        self.run.prune_best(best["t"] if best else None)

    def _gather_states(self, led: Mapping[str, Weights], names: Iterable[str]) -> dict[str, Weights]:
        """Send the tensors of the learners `names` from their leaders to rank 0; empty on other ranks."""
        gathered: dict[str, Weights] = {}
        for name in names:
            leader = self.placement.leader(name)
            received = self.world.send_state(led[name] if self.world.rank == leader else None, leader, 0)
            if received is not None:
                gathered[name] = received
        return gathered

    def _scatter_state(self, name: str, state: Weights | None) -> Weights | None:
        """Send a learner's state from rank 0 to its ranks; None on ranks without the learner."""
        local: Weights | None = None
        for rank in self.placement.ranks[name]:
            received = self.world.send_state(state, 0, rank)
            if received is not None:
                local = received
        return local

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
