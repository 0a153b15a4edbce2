"""The work of one evaluation, shared by any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import final

from allrounder.data.base import Split
from allrounder.distributed import World
from allrounder.errors import Interrupted
from allrounder.evaluation.assemble import assemble_outcome
from allrounder.evaluation.distributed import SharedStore
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import AttackProgress, AttackRunner
from allrounder.evaluation.shifts import CorruptionEval
from allrounder.evaluation.stages import probe_stages
from allrounder.evaluation.store import ResultStore
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.report.reliability import compute_flags
from allrounder.system.processes import run_jobs
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.system.signals import StopRequest, stop_on_signals
from allrounder.types import Classifier, Labels


@final
@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """An evaluation that can run in this process, in workers, or on the ranks of a world."""

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

    def run(self, rows: Labels, workers: int, progress: ProgressCallback) -> ResultStore:
        """Evaluate the images at `rows`, in this process or in workers; returns a store with all results."""
        try:
            if workers == 1:
                return self.run_rows("", progress, rows)
            shares = {f"worker {k + 1}": rows[k::workers] for k in range(min(workers, len(rows)))}
            jobs = {name: partial(self.run_rows, rows=share) for name, share in shares.items()}
            run_jobs(jobs, workers, progress)
        except Interrupted as stop:
            raise self._describe_stop(stop) from None
        return ResultStore(len(self.split), self.folder)

    def run_distributed(self, rows: Labels, world: World, progress: ProgressCallback) -> ResultStore:
        """Evaluate the images at `rows` together with the other ranks; all ranks get all results."""
        shared = SharedStore(world, len(self.split), self.folder, self.store_keys())
        stopped = None
        with stop_on_signals() as stop:
            try:
                shared.start_sending()
                self._run_rows(shared.store, "", progress, rows[world.rank :: world.size], stop, shared.poll)
            except Interrupted as interrupted:
                stopped = self._describe_stop(interrupted)
            shared.finish(stopped, stop)
        return shared.store

    def run_rows(self, name: str, send: ProgressCallback, rows: Labels) -> ResultStore:
        """Evaluate some images in this process; a signal stops it after the results so far are saved."""
        store = ResultStore(len(self.split), self.folder)
        with stop_on_signals() as stop:
            self._run_rows(store, name, send, rows, stop, lambda signal: signal)
        return store

    def _run_rows(
        self,
        store: ResultStore,
        name: str,
        send: ProgressCallback,
        rows: Labels,
        stop: StopRequest,
        poll: Callable[[str | None], str | None],
    ) -> None:
        """`poll` gets the signal that arrived, if any, and returns the reason to stop, if any."""

        def report(progress: AttackProgress) -> None:
            passes = progress.passes.forwards, progress.passes.backwards
            send(ProgressEvent(name, progress.done, progress.total, progress.stage, progress.fooled, *passes))
            if (reason := poll(stop.signal)) is not None:
                raise Interrupted(f"{reason}: stopped, call again to continue")

        if len(rows) == 0:  # more processes than images
            return
        runner = AttackRunner(
            self.model,
            self.split,
            store,
            seed=self.seed,
            batch_size=self.batch_size,
            keep_examples=self.keep_examples,
            report=report,
        )
        runner.run(rows, self.probes)
        self.corruptions.run(runner, rows)

    def store_keys(self) -> list[str]:
        """The store keys of everything that is evaluated."""
        attacks = [stage.key() for probe in self.probes for stage in probe_stages(probe)]
        corruptions = [
            key for shift in self.corruptions.shifts for key in self.corruptions.store_keys(shift).values()
        ]
        return list(dict.fromkeys([NATURAL, *attacks, *corruptions]))

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
