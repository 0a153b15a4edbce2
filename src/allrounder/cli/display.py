"""Tables, and progress bars with an ETA."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from allrounder.cli.echo import PIPE_WIDTH
from allrounder.system.progress import ProgressEvent


@cache
def get_console() -> Console:
    """Return the console of standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_numbers(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers: the first column holds names, the others are right-aligned."""
    table = Table(header_style="bold", show_lines=True)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    get_console().print(table)


def _make_progress(console: Console) -> Progress:
    """Make bars that show done of total, elapsed time and remaining time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@final
class ProgressBars:
    """One bar per job, and one for all of them; outside a terminal, a line per tenth of a job."""

    def __init__(self, names: Sequence[str], overall: str = ""):
        """Bars for jobs with these names, in this order; `overall` labels the bar of all jobs."""
        self.console = get_console()
        self.progress = _make_progress(self.console)
        self.rows = {name: self.progress.add_task(name, total=None, start=False) for name in names}
        self.overall = self.progress.add_task(f"[bold]{overall}", total=100) if overall else None
        self.tenths: dict[str, int] = {}

    def __enter__(self) -> ProgressBars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def update_overall(self, percent: int) -> None:
        """Move the bar of all jobs."""
        if self.overall is not None:
            self.progress.update(self.overall, completed=percent)

    def update(self, name: str, done: int, total: int, stage: str = "") -> None:
        """Move the bar of a job."""
        row = self.rows[name]
        if not self.progress.tasks[row].started:
            self.progress.start_task(row)
        self.progress.update(row, completed=done, total=total, description=f"{name} {stage}".strip())
        tenth = 10 * done // max(total, 1)
        if not self.console.is_terminal and tenth > self.tenths.get(name, 0):
            self.console.print(f"{name} {stage} {done}/{total}".replace("  ", " "), highlight=False)
        self.tenths[name] = tenth

    def log(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False)


@final
class TrainingBar:
    """The progress of one training."""

    def __init__(self, bars: ProgressBars, name: str):
        """Uses the bar of this name."""
        self.bars = bars
        self.name = name
        self.total = 1

    def begin(self, total: int, done: int) -> None:
        """Set the number of steps, and how many an earlier session took."""
        self.total = total
        self.bars.update(self.name, done, total)

    def step(self, t: int) -> None:
        """Move the bar to step t."""
        self.bars.update(self.name, t, self.total)

    def log(self, text: str) -> None:
        """Print a note above the bar."""
        self.bars.log(f"note: {text}")


@final
class EvaluationBars:
    """Bars for the running attacks, and a line for every finished one."""

    def __init__(self, workers: int, quiet: bool):
        """One bar per process; none if `quiet`."""
        names = [""] if workers == 1 else [f"worker {number}" for number in range(1, workers + 1)]
        self.bars = None if quiet else ProgressBars(names)
        self.started: dict[tuple[str, str], float] = {}

    def __enter__(self) -> EvaluationBars:
        if self.bars is not None:
            self.bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.__exit__(*error)

    def log(self, text: str) -> None:
        """Print a line above the bars."""
        if self.bars is not None:
            self.bars.log(text)

    def update(self, event: ProgressEvent) -> None:
        """Move the bar of a process; print a line when its attack is done."""
        if self.bars is None:
            return
        started = self.started.setdefault((event.name, event.stage), time.monotonic())
        robust = event.done - event.fooled
        self.bars.update(event.name, event.done, event.total, f"{event.stage} {event.fooled} fooled")
        if event.done == event.total:
            passes = f"{event.forwards} forward and {event.backwards} backward passes"
            cost = f"{time.monotonic() - started:.1f} s" + (f", {passes}" if event.forwards else "")
            line = f"{event.name} {event.stage}: {event.fooled} fooled, {robust} robust ({cost})"
            self.bars.log(line.strip())
