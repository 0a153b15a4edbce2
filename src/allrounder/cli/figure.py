"""The command `figure`: one figure of runs and studies, for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.cli.index import check_choice, complete_figure, read_index
from allrounder.config.interrupts import delay_interrupts

NAMES = ", ".join(read_index()["lists"]["figures"])


def figure(
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help=f"One of {NAMES} (see: allrounder list figures).",
            autocompletion=complete_figure,
        ),
    ],
    paths: Annotated[
        list[str],
        Argument(metavar="RUN_OR_STUDY", help="Folders of runs, studies or evaluations, or shipped studies."),
    ],
    out: Annotated[
        Path | None,
        Option(
            "--out", "-o", help="The file to write: .svg, .pdf or .png. Default: NAME.svg.", metavar="FILE"
        ),
    ] = None,
    charts: Annotated[
        list[str] | None,
        Option("--chart", help="Draw this chart of the figure only; repeat for several.", metavar="NAME"),
    ] = None,
    rows: Annotated[
        list[str] | None,
        Option(
            help="Draw the row of this name, or rows whose names contain it; repeat for several.",
            metavar="TEXT",
        ),
    ] = None,
) -> None:
    """Draw one figure of runs and studies for a paper, as SVG, PDF or PNG.

    Several charts become the panels of one figure. Colours are those of a report on the same runs.
    """
    with delay_interrupts():
        from allrounder.cli.run_figure import run_figure

    check_choice(name, read_index()["lists"]["figures"])
    run_figure(name, paths, out or Path(f"{name}.svg"), charts or (), rows or ())
