"""The command that compares a run with the theory of the papers: theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.config.interrupts import delay_interrupts


def theory(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run with several learners.")],
    solo: Annotated[
        list[Path] | None,
        Option(
            metavar="RUN",
            help="A finished run that trains one of the tasks alone; repeat for several.",
        ),
    ] = None,
    n: Annotated[int, Option("--n", min=2, help="Number of test images.")] = 256,
) -> None:
    """Compare a run with the theory of Generalist++: regrets, bounds, drift, mixing gap, gradients."""
    with delay_interrupts():
        from allrounder.cli.run_theory import run_theory

    run_theory(run, solo or (), n)
