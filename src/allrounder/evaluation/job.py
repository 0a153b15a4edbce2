"""Runs an evaluation in this process, in worker processes, or on the ranks of a world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import final

from allrounder.data.base import Split
from allrounder.distributed import World
from allrounder.errors import Interrupted, WorldError
from allrounder.evaluation.assemble import assemble_outcome
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.evaluation.runner import AttackProgress, AttackRunner
from allrounder.evaluation.shifts import CorruptionEval
from allrounder.evaluation.store import ResultStore
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.report.reliability import compute_flags
from allrounder.system.processes import run_jobs
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.system.signals import StopRequest, stop_on_signals
from allrounder.types import Classifier, Labels

POLL_SECONDS = 0.5
"""Seconds between two checks for messages from other ranks."""
ROWS_PER_MESSAGE = 50_000
"""Rows whose results are sent in one message: about 2 MB for one attack."""


@final
@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """The work of one evaluation; any number of processes gives the same results."""

    model: Classifier
    split: Split
    probes: tuple[Probe, ...]
    seed: int
    batch_size: int
    keep_examples: bool
    folder: Path | None
    """Where results are stored; None keeps them in memory."""
    persistent: bool = True
    """Whether the results are still there for the next call."""
    corruptions: CorruptionEval = field(default_factory=CorruptionEval)

    def run(self, rows: Labels, workers: int, progress: ProgressCallback, world: World) -> ResultStore:
        """Evaluate the images at `rows`, and return a store with all results."""
        if world.size > 1:
            return self._run_distributed(rows, world, progress)
        try:
            if workers == 1:
                return self.run_rows("", progress, rows)
            self._set_damaged_results_aside()
            shares = {f"worker {k + 1}": rows[k::workers] for k in range(min(workers, len(rows)))}
            jobs = {name: partial(self.run_rows, rows=share) for name, share in shares.items()}
            run_jobs(jobs, workers, progress)
        except Interrupted as stop:
            raise self._describe_stop(stop) from None
        return ResultStore(len(self.split), self.folder)

    def _set_damaged_results_aside(self) -> None:
        """Read all stored results once, so that damaged ones are reported before and not by the workers."""
        store = ResultStore(len(self.split), self.folder)
        for key in self.store_keys():
            store.results(key)

    def _run_distributed(self, rows: Labels, world: World, progress: ProgressCallback) -> ResultStore:
        """Evaluate the images at `rows` together with the other ranks; all ranks get all results."""
        shared = SharedStore(world, len(self.split), self.folder, self.store_keys())
        stopped = None
        with stop_on_signals() as stop:
            poll = partial(shared.poll, stop)
            try:
                shared.start_sending()
                self._run_rows(shared.store, rows[world.rank :: world.size], "", progress, poll)
            except Interrupted as interrupted:
                stopped = str(self._describe_stop(interrupted))
            shared.finish(stopped, poll)
        return shared.store

    def run_rows(self, name: str, send: ProgressCallback, rows: Labels) -> ResultStore:
        """Evaluate some images in this process; a signal stops it after the results so far are saved."""
        store = ResultStore(len(self.split), self.folder)
        with stop_on_signals() as stop:
            self._run_rows(store, rows, name, send, lambda: stop.signal)
        return store

    def _run_rows(
        self,
        store: ResultStore,
        rows: Labels,
        name: str,
        send: ProgressCallback,
        poll: Callable[[], str | None],
    ) -> None:
        """`poll` returns the reason to stop, if any."""

        def report(progress: AttackProgress) -> None:
            passes = int(progress.passes.forwards), int(progress.passes.backwards)
            send(ProgressEvent(name, progress.done, progress.total, progress.stage, progress.fooled, *passes))
            if (reason := poll()) is not None:
                raise Interrupted(f"{reason}: stopped, call again to continue")

        if len(rows) == 0:  # more processes than images
            return
        runner = AttackRunner(
            self.model, self.split, store, self.seed, self.batch_size, self.keep_examples, report
        )
        runner.run(rows, self.probes)
        self.corruptions.run(runner, rows)

    def store_keys(self) -> list[str]:
        """The store keys of everything that is evaluated."""
        attacks = [stage.key() for probe in self.probes for stage in probe_stages(probe)]
        return list(
            dict.fromkeys(
                [NATURAL, *attacks, *self.corruptions.store_keys(*self.corruptions.shifts).values()]
            )
        )

    def _describe_stop(self, stop: Interrupted) -> Interrupted:
        """The message after an interruption: whether another call continues."""
        if self.persistent:
            return stop
        return Interrupted(f"{str(stop).partition(',')[0]}, nothing was saved: give out=...")

    def build_outcome(self, store: ResultStore, rows: Labels, facts: Facts) -> Outcome:
        """The outcome of the images at `rows`, with the flags of unreliable numbers."""
        outcome = assemble_outcome(store, self.probes, rows, self.split.labels[rows], facts)
        predicted = {**outcome.predicted, **self.corruptions.predictions(store, rows)}
        outcome = replace(outcome, predicted=predicted)
        return replace(outcome, facts={**facts, "flags": compute_flags(outcome)})


@final
class SharedStore:
    """The result store of this rank; all ranks fill one evaluation together and need no common disk.

    Rank 0 owns the folder, if there is one. Before the work starts it sends the stored results to all ranks,
    so that no attack is run twice. The other ranks send every new shard to rank 0, which writes it while it
    works on its own images, so the results of a rank survive if that rank is killed later.
    """

    def __init__(self, world: World, num_images: int, folder: Path | None, keys: Sequence[str]):
        """A collective call: all ranks give the same number of images and the same store keys."""
        assert world.coordinator is not None
        self.world = world
        self.coordinator = world.coordinator
        self.keys = keys
        self.last_poll = 0.0
        self.store = ResultStore(num_images, folder if world.is_main else None)
        self._broadcast("before")

    def poll(self, stop: StopRequest) -> str | None:
        """Send a heartbeat, receive new results, and return the reason why all ranks must stop, if any."""
        self.world.heartbeat()
        if stop.signal is None and time.monotonic() - self.last_poll < POLL_SECONDS:
            return None
        self.last_poll = time.monotonic()
        self._receive()
        return self.coordinator.stop_requested(stop.signal)

    def start_sending(self) -> None:
        """From now on, send every new shard to rank 0."""
        if not self.world.is_main:
            self.store.on_new = self.coordinator.send_note

    def finish(self, stopped: str | None, poll: Callable[[], str | None]) -> None:
        """Wait for all ranks, then give every store all results; raise on all ranks if one was stopped."""
        self.store.on_new = lambda results: None
        try:
            reasons = self.coordinator.all_gather_object("the end of the evaluation", stopped, poll)
        except WorldError:
            with suppress(WorldError):  # keep the results that were sent before the failure
                self._receive()
            raise
        self._receive()
        for reason in filter(None, reasons):
            raise Interrupted(reason)
        self._broadcast("after")

    def _receive(self) -> None:
        for results in self.coordinator.recv_notes() if self.world.is_main else ():
            self.store.merge(results)

    def _broadcast(self, when: str) -> None:
        """Send the results of rank 0 to all ranks."""
        for key in self.keys:
            for first in range(0, self.store.num_images, ROWS_PER_MESSAGE):
                rows = range(first, min(first + ROWS_PER_MESSAGE, self.store.num_images))
                results = self.store.export([key], rows) if self.world.is_main else None
                what = f"the results of {key} {when}, from row {first}"
                self.store.merge(self.world.all_gather_object(what, results)[0])
