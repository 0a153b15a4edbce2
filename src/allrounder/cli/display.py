"""Tables, progress bars with an ETA, and numbers with units."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import TypeVar, final

from rich import progress
from rich.console import Console
from rich.table import Table

from allrounder.cli.echo import PIPE_WIDTH
from allrounder.system.progress import ProgressEvent

Bars = TypeVar("Bars", bound="ProgressBars")


@cache
def get_console(quiet: bool = False) -> Console:
    """Return the console of standard output; a quiet one prints nothing."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, quiet=quiet)


def print_numbers(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers: the first column holds names, the others are right-aligned."""
    table = Table(header_style="bold", show_lines=True)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    get_console().print(table)


def format_bytes(count: int) -> str:
    """Format a number of bytes with a unit that fits."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count} bytes"


class ProgressBars:
    """One bar per job, and one for all of them; outside a terminal, a line per tenth of a job."""

    def __init__(self, names: Sequence[str], overall: str = "", quiet: bool = False):
        """Bars for jobs with these names, in this order; `overall` labels the bar of all jobs."""
        self.console = get_console(quiet)
        self.progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("ETA"),
            progress.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.rows = {name: self.progress.add_task(name, total=None, start=False) for name in names}
        self.overall = self.progress.add_task(f"[bold]{overall}", total=100) if overall else None
        self.tenths: dict[str, int] = {}

    def __enter__(self: Bars) -> Bars:
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
        self.console.print(text, highlight=False, markup=False)


@final
class JobBar:
    """The progress of one training in steps, or of one download in kilobytes."""

    def __init__(self, bars: ProgressBars, name: str, unit: str = "", scale: int = 1, prefix: str = "note: "):
        """Uses the bar of this name; `prefix` starts every message."""
        self.bars, self.name = bars, name
        self.unit, self.scale, self.prefix = unit, scale, prefix
        self.total = 1

    def begin(self, total: int, done: int) -> None:
        """Set the number of steps or bytes, and how many are from an earlier session."""
        self.total = total
        self.step(done)

    def step(self, t: int) -> None:
        """Move the bar to step or byte t."""
        self.bars.update(self.name, t // self.scale, max(self.total, t) // self.scale, self.unit)

    def log(self, text: str) -> None:
        """Print a line above the bar."""
        self.bars.log(f"{self.prefix}{text}")


@final
class EvaluationBars(ProgressBars):
    """One bar per process for its running attack, and a line for every finished one."""

    def __init__(self, workers: int, quiet: bool):
        """Prints nothing if `quiet`."""
        super().__init__(
            [""] if workers == 1 else [f"worker {number}" for number in range(1, workers + 1)], quiet=quiet
        )
        self.started: dict[tuple[str, str], float] = {}

    def update_attack(self, event: ProgressEvent) -> None:
        """Move the bar of a process; print a line when its attack is done."""
        started = self.started.setdefault((event.name, event.stage), time.monotonic())
        self.update(event.name, event.done, event.total, f"{event.stage} {event.fooled} fooled")
        if event.done == event.total:
            passes = f"{event.forwards} forward and {event.backwards} backward passes"
            cost = f"{time.monotonic() - started:.1f} s" + (f", {passes}" if event.forwards else "")
            counts = f"{event.fooled} fooled, {event.done - event.fooled} robust"
            self.log(f"{event.name} {event.stage}: {counts} ({cost})".strip())
