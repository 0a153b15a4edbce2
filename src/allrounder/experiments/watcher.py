"""Read the state of a run or a study while it trains. Nothing is written.

A folder that does not exist yet, or that is damaged, is a state like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, final

from allrounder.errors import AllrounderError
from allrounder.experiments.live import Status, combine, combine_stages, describe_training, to_table
from allrounder.experiments.manifest import MANIFEST_FILE, Manifest, TrialEntry, evaluation_folder
from allrounder.recipe.init import STAGES_DIR
from allrounder.report.outcome import OUTCOME_FILE
from allrounder.system.files import is_locked
from allrounder.training.record import FORMAT_FILE, METRICS_FILE, RECIPE_FILE, RunRecord, is_finished

Stamp: TypeAlias = tuple[object, ...]


@final
@dataclass
class Watcher:
    """Reads the state of one folder again and again; files that did not change are read once."""

    folder: Path
    records: dict[Path, tuple[Stamp, RunRecord]] = field(default_factory=dict[Path, tuple[Stamp, RunRecord]])
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lets one thread read at a time."""

    def read_state(self, now: float, selected: int | None = None) -> dict[str, Any]:
        """Return the state at the time `now`, with the curves of one training of a study or a pipeline: that
        with the number `selected`, or else one that is running."""
        with self.lock:
            try:
                return self._read(now, selected)
            except (AllrounderError, OSError) as error:
                return to_table("unknown", Status(self.folder.name, "damaged", str(error)))

    def _read(self, now: float, selected: int | None) -> dict[str, Any]:
        if (self.folder / MANIFEST_FILE).is_file():
            manifest = Manifest.load(self.folder)
            parts = [self._describe_trial(trial, now) for trial in manifest.trials]
            work = [_parse_work(trial.cost) for trial in manifest.trials]
            whole = combine(manifest.name, parts, work)
            folders = [self.folder / trial.folder for trial in manifest.trials]
            return self._with_part("study", whole, parts, folders, selected)
        if not (self.folder / RECIPE_FILE).is_file():
            exists = "holds no run and no study yet" if self.folder.is_dir() else "does not exist yet"
            message = f"{self.folder} {exists}; the page shows a training as soon as it starts there"
            return to_table("unknown", Status(self.folder.name, "waiting", message))
        record = self._read_record(self.folder)
        status = self._describe_run(record, now)
        stages = _find_stages(self.folder)
        if not stages:
            return to_table("run", status, record=record)
        parts = [self._describe_folder(stage, now) for stage in stages]
        return self._with_part("pipeline", combine_stages(status, parts), parts, stages, selected)

    def _with_part(
        self, kind: str, whole: Status, parts: Sequence[Status], folders: Sequence[Path], selected: int | None
    ) -> dict[str, Any]:
        """Return the state of several trainings with the curves of one of them, if it can be read."""
        active = [number for number, part in enumerate(parts) if part.phase == "running"]
        begun = [number for number, part in enumerate(parts) if part.epoch]
        if selected is None or not 0 <= selected < len(parts):
            selected = (active or begun[-1:] or [0])[0]
        record = None
        if parts and parts[selected].phase not in ("waiting", "damaged"):
            folder = folders[selected]
            record = self._read_record((_find_stages(folder) or [folder])[-1])
        return to_table(kind, whole, parts, selected, record)

    def _read_record(self, folder: Path) -> RunRecord:
        """Read the record of a run, from memory if its files did not change."""
        files = [folder / name for name in (FORMAT_FILE, RECIPE_FILE, METRICS_FILE)]
        stamp: Stamp = (*map(_stamp, files), is_finished(folder))
        known = self.records.get(folder)
        if known is not None and known[0] == stamp:
            return replace(known[1], running=is_locked(folder))
        record = RunRecord.read(folder)
        self.records[folder] = stamp, record
        return record

    def _describe_run(self, record: RunRecord, now: float) -> Status:
        files = [record.folder / name for name in (METRICS_FILE, "env.json")]
        changes = [file.stat().st_mtime for file in files if file.exists()]
        return describe_training(record, max(now - max(changes, default=now), 0.0))

    def _describe_folder(self, folder: Path, now: float) -> Status:
        try:
            status = replace(self._describe_run(self._read_record(folder), now), label=folder.name)
            parts = [self._describe_folder(stage, now) for stage in _find_stages(folder)]
            return combine_stages(status, parts) if parts else status
        except (AllrounderError, OSError) as error:
            return Status(folder.name, "damaged", str(error))

    def _describe_trial(self, trial: TrialEntry, now: float) -> Status:
        folder = self.folder / trial.folder
        label = ", ".join(trial.rows)
        if not (folder / RECIPE_FILE).is_file():
            return Status(label, "waiting", seed=trial.seed)
        status = replace(self._describe_folder(folder, now), label=label, seed=trial.seed)
        if status.phase != "finished":
            return status
        evaluations = [evaluation_folder(folder, which) for which in dict.fromkeys(trial.rows.values())]
        if any(map(is_locked, evaluations)):
            return replace(status, phase="evaluating")
        is_evaluated = all((evaluation / OUTCOME_FILE).is_file() for evaluation in evaluations)
        return replace(status, message="evaluated" if is_evaluated else "not evaluated yet")


def _find_stages(folder: Path) -> list[Path]:
    """Return the folders of the stages of a pipeline that have started, in their order; empty for others."""
    files = folder.glob(f"{STAGES_DIR}/*/{RECIPE_FILE}")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime)]


def _parse_work(cost: str) -> float:
    """Return the work of "forwards/backwards" passes: a backward pass costs as much as two forward passes."""
    forwards, _, backwards = cost.partition("/")
    return float(forwards) + 2 * float(backwards) if forwards.isdecimal() and backwards.isdecimal() else 1.0


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None if there is none."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
