"""What a person sees in the terminal: bars with an ETA, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
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

from allrounder.system.processes import Note

out = Console(width=None if sys.stdout.isatty() else 110)
err = Console(stderr=True)


def say(text: str, where: Console = out) -> None:
    """Print a text as it is: no colours, no markup, and no wrapping, so that it can be searched."""
    where.print(text, highlight=False, markup=False, soft_wrap=True)


def bars(console: Console) -> Progress:
    """Bars with done of total, elapsed and remaining time."""
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
class Bars:
    """One bar for every job, and one for all of them; on a plain stream, a line at every tenth of a job."""

    def __init__(self, console: Console, names: Sequence[str], overall: str = ""):
        """The jobs are known beforehand, in the order they are shown."""
        self.console, self.progress = console, bars(console)
        self.rows = {name: self.progress.add_task(name, total=None, start=False) for name in names}
        self.all = self.progress.add_task(f"[bold]{overall}", total=100) if overall else None
        self.tenths: dict[str, int] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show_overall(self, percent: int) -> None:
        """How much of all jobs is done."""
        if self.all is not None:
            self.progress.update(self.all, completed=percent)

    def show(self, name: str, done: int, total: int, what: str = "") -> None:
        """A job stands at done of total."""
        row = self.rows[name]
        if not self.progress.tasks[row].started:
            self.progress.start_task(row)
        self.progress.update(row, completed=done, total=total, description=f"{name} {what}".strip())
        tenth = 10 * done // max(total, 1)
        if not self.console.is_terminal and tenth > self.tenths.get(name, 0):
            self.console.print(f"{name} {what} {done}/{total}".replace("  ", " "), highlight=False)
        self.tenths[name] = tenth

    def say(self, text: str) -> None:
        """A line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False)


@final
class Watch:
    """The progress of a single training."""

    def __init__(self, bars: Bars, name: str):
        """Shown under this name."""
        self.bars, self.name, self.total = bars, name, 1

    def begin(self, total: int, done: int) -> None:
        """Set the length."""
        self.total = total
        self.bars.show(self.name, done, total)

    def step(self, t: int) -> None:
        """Move the bar."""
        self.bars.show(self.name, t, self.total)

    def say(self, text: str) -> None:
        """A note above the bar."""
        self.bars.say(f"note: {text}")


def listing(title: str, rows: Mapping[str, str]) -> Table:
    """Names with one line each."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
    )
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for name, line in rows.items():
        table.add_row(f"  {name}", line)
    return table


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of numbers: the first column names, the others are right-aligned."""
    table = Table(header_style="bold", show_lines=True)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    return table


@final
class Observer:
    """Bars for the attacks that are under way, and a line for every one that is done."""

    def __init__(self, workers: int, quiet: bool):
        """A bar for each process."""
        names = [""] if workers == 1 else [f"worker {number}" for number in range(1, workers + 1)]
        self.bars = None if quiet else Bars(out, names)
        self.begun: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Observer:
        if self.bars is not None:
            self.bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.__exit__(*error)

    def say(self, text: str) -> None:
        """A line above the bars."""
        if self.bars is not None:
            self.bars.say(text)

    def note(self, note: Note) -> None:
        """Hear how far an attack is."""
        if self.bars is None:
            return
        begun = self.begun.setdefault((note.name, note.what), time.monotonic())
        left = note.done - note.broken
        self.bars.show(note.name, note.done, note.total, f"{note.what} {note.broken} broken")
        if note.done == note.total:
            passes = f"{note.forwards} forward and {note.backwards} backward passes"
            spent = f"{time.monotonic() - begun:.1f} s" + (f", {passes}" if note.forwards else "")
            self.bars.say(f"{note.name} {note.what}: {note.broken} broken, {left} left ({spent})".strip())
