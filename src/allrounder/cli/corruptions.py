"""The commands that make sets of changed images: make-c and make-p."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from allrounder.cli.display import Bars, out, say
from allrounder.data.corruptions import CORRUPTIONS
from allrounder.data.corruptions.generate import make_c, make_p
from allrounder.data.corruptions.perturbations import PERTURBATIONS
from allrounder.data.files.cache import cache_folder
from allrounder.data.inputs.by_name import data_of
from allrounder.system.processes import Note

Images = Annotated[
    str, typer.Argument(metavar="DATA", help="A dataset by name, or an .npz file; its test images are used.")
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Where the files go; by default where eval finds them.")
]
Corruptions = Annotated[
    list[str] | None, typer.Option("--corruption", help="One of them, repeat for several; by default all 19.")
]
Perturbations = Annotated[
    list[str] | None,
    typer.Option("--perturbation", help="One of them, repeat for several; by default 10."),
]
Seed = Annotated[int, typer.Option(help="Of all chance; sets of different seeds are different sets.")]


def make_c_(data: Images, corruption: Corruptions = None, folder: Folder = None, seed: Seed = 0) -> None:
    """Corrupt the test images of a dataset as CIFAR-10-C does, into files of its layout.

    What is finished is not made again: call again after an interruption. The files are marked as generated.
    """
    names = tuple(corruption or CORRUPTIONS)
    _made(data, folder, "c", len(names), partial(make_c, corruptions=names, seed=seed))


def make_p_(data: Images, perturbation: Perturbations = None, folder: Folder = None, seed: Seed = 0) -> None:
    """Make perturbation sequences of the test images of a dataset as in CIFAR-10-P, into files of its layout.

    What is finished is not made again: call again after an interruption. The files are marked as generated.
    """
    names = tuple(perturbation or PERTURBATIONS)
    _made(data, folder, "p", len(names), partial(make_p, perturbations=names, seed=seed))


def _made(data: str, folder: Path | None, kind: str, files: int, make: Callable[..., Path]) -> None:
    images = data_of(data)
    where = folder or cache_folder() / f"{images.name}-{kind}-generated"
    say(f"{images.name}: {len(images.test)} images")
    begun: dict[str, None] = {}
    with Bars(out, [""], overall=f"all {files} files, percent") as bars:

        def show(note: Note) -> None:
            begun.setdefault(note.what)
            bars.show("", note.done, note.total, note.what)
            bars.show_overall(int(100 * (len(begun) - 1 + note.done / note.total) / files))
            if note.done == note.total:
                bars.say(f"{note.what}: done")

        try:
            make(images.test, where, progress=show)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    say(f"files: {where}/")
