"""The work of `allrounder ls` and `allrounder log`, without torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from allrounder.cli.display import print_columns
from allrounder.cli.echo import echo, echo_note, output_width
from allrounder.errors import RunError, StorageError
from allrounder.experiments.manifest import MANIFEST_FILE, Manifest
from allrounder.report.curves import (
    ASCII_BARS,
    BARS,
    Curve,
    format_accuracies,
    learner_curves,
    loss_curves,
    sparkline,
    validation_curves,
)
from allrounder.system.progress_bar import format_duration
from allrounder.training.record import METRICS_FILE, RECIPE_FILE, RunRecord, is_finished

MAX_SPARKLINE = 60
CURVE_COLUMNS = 50
"""The width of the columns beside a sparkline."""
Row = tuple[str, str, str, str, str]


def print_runs(folder: Path) -> None:
    """Print the runs and studies below a folder."""
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; name the folder that holds your runs")
    rows = list(_find_rows(folder))
    if not rows:
        raise RunError(f"{folder}: holds no run and no study; train one with: allrounder train embedded/nt")
    print_columns(("folder", "state", "recipe", "best", "age"), rows)


def print_log(run: Path, max_rows: int) -> None:
    """Print the curves of a run, or of the stages of a pipeline, with at most `max_rows` epochs each."""
    record = RunRecord.read(run)
    echo(f"{record.name}: {record.state}")
    if best := record.best_validation():
        echo(f"best global weights: step {best['t']}, epoch {best['epoch']}, {format_accuracies(best)}")
    stages = sorted((run / "stages").glob(f"*/{RECIPE_FILE}"), key=lambda file: file.stat().st_mtime)
    if record.epoch:
        _print_curves(record, max_rows)
    elif not stages and not record.finished:  # a finished run without epochs is a mixture of others
        echo_note("no epoch is finished yet")
    for file in stages:
        stage = RunRecord.read(file.parent)
        echo(f"\nstage {file.parent.name}: {stage.state}")
        if stage.epoch:
            _print_curves(stage, max_rows)


def _print_curves(record: RunRecord, max_rows: int) -> None:
    """Print all curves as sparklines, then losses and validations of at most `max_rows` epochs."""
    validations = validation_curves(record.events)
    by_epoch = [*loss_curves(record.events, record.learners), *validations]
    exchanges = record.count_exchanges()
    bars = BARS if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII_BARS
    width = max(10, min(MAX_SPARKLINE, output_width() - CURVE_COLUMNS))
    curves = [*by_epoch, *learner_curves(record.events, record.learners)]
    if exchanges:
        counts = {epoch: float(exchanges[epoch]) for epoch in range(1, record.epoch + 1)}
        curves.append(Curve("exchanges", counts))
    print_columns(
        ("curve", "first", "last", "min", "max", ""),
        [_summarise(curve, width, bars) for curve in curves if curve.values],
        numbers=(1, 2, 3, 4),
    )
    echo("")
    every = -(-record.epoch // max_rows)
    epochs = [epoch for epoch in range(1, record.epoch + 1) if (record.epoch - epoch) % every == 0]
    header = ("epoch", *(curve.name for curve in by_epoch), *(["exchanges"] if exchanges else []))
    rows = [
        (
            str(epoch),
            *(curve.format(curve.values[epoch]) if epoch in curve.values else "" for curve in by_epoch),
            *([str(exchanges[epoch] or "")] if exchanges else []),
        )
        for epoch in epochs
    ]
    print_columns(header, rows, numbers=range(len(header)))


def _summarise(curve: Curve, width: int, bars: str) -> tuple[str, ...]:
    values = list(curve.values.values())
    numbers = (values[0], values[-1], min(values), max(values))
    return (curve.name, *map(curve.format, numbers), sparkline(values, width, bars))


def _find_rows(root: Path) -> Iterator[Row]:
    """Describe every run and study below a folder; stages of a run are a part of it."""
    for path, folders, files in os.walk(root):
        folders.sort()
        folder = Path(path)
        if MANIFEST_FILE in files:
            yield _describe_study(folder)
        if RECIPE_FILE in files:
            folders.clear()
            yield _describe_run(folder)


def _describe_run(folder: Path) -> Row:
    metrics = folder / METRICS_FILE
    age = _format_age(metrics if metrics.exists() else folder / RECIPE_FILE)
    try:
        record = RunRecord.read(folder)
        best = record.best_validation()
    except (RunError, StorageError) as error:
        reason = str(error).removeprefix(f"{folder}: ").removeprefix(f"{folder}/")
        return str(folder), f"damaged: {reason}", "", "", age
    return str(folder), record.state, record.name, "" if best is None else format_accuracies(best), age


def _describe_study(folder: Path) -> Row:
    age = _format_age(folder / MANIFEST_FILE)
    try:
        manifest = Manifest.load(folder)
    except (RunError, StorageError) as error:
        return str(folder), f"damaged: {str(error).removeprefix(f'{folder}/')}", "", "", age
    finished = sum(is_finished(folder / trial.folder) for trial in manifest.trials)
    return str(folder), f"{finished} of {len(manifest.trials)} finished", f"study {manifest.name}", "", age


def _format_age(file: Path) -> str:
    return format_duration(max(0.0, time.time() - file.stat().st_mtime))
