"""The command `report`: runs and studies as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.config.interrupts import delay_interrupts


def report(
    paths: Annotated[
        list[str],
        Argument(metavar="RUN_OR_STUDY", help="Folders of runs, studies or evaluations, or shipped studies."),
    ],
    out: Annotated[Path, Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, Option(help="The heading of the page.")] = None,
    gallery: Annotated[
        bool, Option("--gallery/--no-gallery", help="Show images, their perturbations and explanations.")
    ] = True,
) -> None:
    """Write a page with the results of runs and studies: tables, figures, images, and where they come from.

    The page is one file that needs no network. It can be opened, mailed and printed.
    """
    with delay_interrupts():
        from allrounder.cli.run_report import run_report

    run_report(paths, out, title, gallery)
