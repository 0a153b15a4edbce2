"""The commands about datasets on disk: data get, data check, data where, data make-c and data make-p."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from allrounder.cli.echo import echo, echo_error
from allrounder.cli.index import complete_dataset, read_index
from allrounder.cli.verbs import VerbGroup
from allrounder.config.interrupts import delay_interrupts

app = Typer(cls=VerbGroup, help="Download, check, locate and corrupt datasets.", no_args_is_help=True)

Name = Annotated[
    str, Argument(metavar="NAME", help="A dataset, such as CIFAR-10.", autocompletion=complete_dataset)
]
Source = Annotated[
    Path | None, Option("--from", help="A folder that holds the files, used instead of a download.")
]
NameOrPath = Annotated[
    str,
    Argument(
        metavar="NAME_OR_PATH",
        help="A dataset, an .npz file, a folder, or KIND:PATH.",
        autocompletion=complete_dataset,
    ),
]
Images = Annotated[
    str, Argument(metavar="DATA", help="A dataset by name, or an .npz file; its test images are used.")
]
Folder = Annotated[
    Path | None, Option("--out", help="The folder of the files. Default: where eval looks for them.")
]
_REPEAT = "repeat for several. Default: all"
Corruptions = Annotated[
    list[str] | None,
    Option("--corruption", help=f"A corruption; {_REPEAT} {len(read_index()['corruptions'])}."),
]
Perturbations = Annotated[
    list[str] | None,
    Option("--perturbation", help=f"A perturbation; {_REPEAT} {len(read_index()['perturbations'])}."),
]
Seed = Annotated[int, Option(help="Random seed of the corruptions.")]


@app.command()
def get(name: Name, source: Source = None) -> None:
    """Download a dataset into the cache and verify it; files that are there are kept.

    Call again to resume an interrupted download.
    """
    with delay_interrupts():
        from allrounder.cli.run_data import get_dataset

    get_dataset(name, source)


@app.command()
def check(data: NameOrPath) -> None:
    """Verify the checksums of a dataset, decode all its images and count them; exit 1 if anything is wrong.

    KIND:PATH says what a folder holds if its content does not show it.
    """
    with delay_interrupts():
        from allrounder.cli.run_data import check_dataset

    name, problems = check_dataset(data)
    for problem in problems:
        echo_error(f"error: {problem}")
    if problems:
        raise Exit(1)
    echo(f"{name}: nothing is wrong")


@app.command()
def where() -> None:
    """Print where the cache is, what it holds, and how to move it."""
    with delay_interrupts():
        from allrounder.cli.run_data import print_cache

    print_cache()


@app.command("make-c")
def make_c_(data: Images, corruption: Corruptions = None, folder: Folder = None, seed: Seed = 0) -> None:
    """Corrupt the test images of a dataset, into files with the layout of CIFAR-10-C.

    Finished files are kept: call again after an interruption. The files are marked as generated.
    """
    with delay_interrupts():
        from allrounder.cli.run_corruptions import generate_corruptions

    generate_corruptions(data, corruption, folder, seed)


@app.command("make-p")
def make_p_(data: Images, perturbation: Perturbations = None, folder: Folder = None, seed: Seed = 0) -> None:
    """Make perturbation sequences of the test images of a dataset, into files with the layout of CIFAR-10-P.

    Finished files are kept: call again after an interruption. The files are marked as generated.
    """
    with delay_interrupts():
        from allrounder.cli.run_corruptions import generate_perturbations

    generate_perturbations(data, perturbation, folder, seed)
