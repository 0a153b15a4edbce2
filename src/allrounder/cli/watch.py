"""The command about a training that runs: watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.config.interrupts import delay_interrupts

FOLDER_HELP = "A run folder or the folder of a study; it may appear later."
Folder = Annotated[Path, Argument(metavar="RUN|STUDY", help=FOLDER_HELP)]
PORT_HELP = "The port on this machine; 0 takes a free one."
Port = Annotated[int, Option(min=0, max=65535, help=PORT_HELP)]
Open = Annotated[bool, Option("--open", help="Open the page in a browser.")]


def watch(folder: Folder, port: Port = 0, open_page: Open = False) -> None:
    """Show the progress and the curves of a training or a study on a live page in a browser.

    Prints the address of the page, which only this machine can open, and serves it until Ctrl-C. Nothing in
    the folder is changed.
    """
    with delay_interrupts():
        from allrounder.cli.run_watch import run_watch

    run_watch(folder, port, open_page)
