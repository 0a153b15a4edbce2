"""The commands about runs on disk: ls and log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.config.interrupts import delay_interrupts


def ls(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where to look.")] = Path("runs"),
) -> None:
    """List the runs and studies below a folder: state, recipe, best validation accuracies, age."""
    with delay_interrupts():
        from allrounder.cli.run_runs import print_runs

    print_runs(folder)


def log(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    rows: Annotated[int, Option("--rows", min=1, help="The largest number of epochs to print.")] = 20,
) -> None:
    """Print the curves of a run: losses, accuracies, shares and exchanges, as sparklines and by epoch."""
    with delay_interrupts():
        from allrounder.cli.run_runs import print_log

    print_log(run, rows)
