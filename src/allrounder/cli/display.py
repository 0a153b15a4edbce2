"""Tables, progress bars with an ETA, and numbers with units."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar, final

from rich import progress
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from allrounder.cli.echo import QUIET, output_width
from allrounder.system.progress import ProgressEvent

Bars = TypeVar("Bars", bound="ProgressBars")


@final
class PlainConsole(Console):
    """The console of standard output. It prints texts unchanged: users' names are no markup and no emoji."""

    def __init__(self, quiet: bool = False):
        """Print nothing if `quiet`."""
        super().__init__(quiet=quiet, markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            self.width = output_width()

    @override
    def on_broken_pipe(self) -> None:
        """Raise the error again, where rich would exit without a message."""
        raise


def print_numbers(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers: the first column holds names, the others are right-aligned."""
    table = Table(header_style="bold", show_lines=True)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    PlainConsole().print(table)


def print_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()
) -> None:
    """Print a table without lines; the columns at the positions `numbers` are right-aligned. The first column
    is wrapped only if it would leave too little room for the others."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    fits = max((len(row[0]) for row in rows), default=0) <= output_width() // 2
    for position, name in enumerate(header):
        justify = "right" if position in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=position == 0 and fits, overflow="fold")
    for row in rows:
        table.add_row(*row)
    PlainConsole().print(table)


def format_bytes(count: int) -> str:
    """Format a number of bytes with a unit that fits."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count} bytes"


def format_count(count: int) -> str:
    """Format a large number with a prefix, such as "1.11 G"."""
    for prefix, power in (("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {prefix}"
    return f"{count} "


class ProgressBars:
    """One bar per job, and one for all of them; outside a terminal, a line per tenth of a job."""

    def __init__(self, names: Sequence[str], overall: str = "", quiet: bool = False):
        """Bars for jobs with these names, in this order; `overall` labels the bar of all jobs. Nothing is
        printed if `quiet`, or with --quiet."""
        self.console = PlainConsole(quiet or QUIET.get())
        self.progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("ETA"),
            progress.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.rows = {name: self.progress.add_task(name, total=None, start=False) for name in names}
        self.overall = self.progress.add_task(overall, total=100) if overall else None
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
        if name not in self.rows:  # work of this process beside that of the workers
            self.rows[name] = self.progress.add_task(name, total=None, start=False)
        row = self.rows[name]
        if not self.progress.tasks[row].started:
            self.progress.start_task(row)
        self.progress.update(row, completed=done, total=total, description=f"{name} {stage}".strip())
        tenth = 10 * done // max(total, 1)
        if not self.console.is_terminal and tenth > self.tenths.get(name, 0):
            self.console.print(f"{name} {stage} {done}/{total}".replace("  ", " "), soft_wrap=True)
        self.tenths[name] = tenth

    def log(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def print_warnings(self) -> Generator[None]:
        """Within the context, print Python's warnings as notes above the bars."""

        def show(message: Warning | str, *details: object, **options: object) -> None:
            self.log(f"note: {message}")

        with warnings.catch_warnings():
            warnings.showwarning = show
            yield


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
            words = ("wrong", "correct") if event.stage.endswith("natural") else ("fooled", "robust")
            counts = f"{event.fooled} {words[0]}, {event.done - event.fooled} {words[1]}"
            self.log(f"{event.name} {event.stage}: {counts} ({cost})".strip())
