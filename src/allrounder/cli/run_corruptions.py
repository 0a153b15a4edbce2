"""The work of `allrounder data make-c` and `data make-p`: generate sets of corrupted images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import typer

from allrounder.cli.display import ProgressBars
from allrounder.cli.echo import echo, echo_note
from allrounder.data.corruptions import CORRUPTIONS
from allrounder.data.corruptions.generate import make_set
from allrounder.data.corruptions.perturbations import PERTURBATIONS
from allrounder.data.files.cache import cache_folder
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.system.progress import ProgressEvent


def generate_corruptions(data: str, names: Sequence[str] | None, folder: Path | None, seed: int) -> None:
    """Corrupt the test images of a dataset into files with the layout of CIFAR-10-C."""
    names = tuple(names or CORRUPTIONS)
    _generate(data, folder, "c", len(names), partial(make_set, kind="c", names=names, seed=seed))


def generate_perturbations(data: str, names: Sequence[str] | None, folder: Path | None, seed: int) -> None:
    """Make perturbation sequences of the test images of a dataset, with the layout of CIFAR-10-P."""
    names = tuple(names or PERTURBATIONS)
    _generate(data, folder, "p", len(names), partial(make_set, kind="p", names=names, seed=seed))


def _generate(data: str, folder: Path | None, kind: str, files: int, make: Callable[..., Path]) -> None:
    images = load_eval_data(data)
    target = folder or cache_folder() / f"{images.name}-{kind}-generated"
    echo_note(f"{images.name}: {len(images.test)} images")
    started: dict[str, None] = {}
    with ProgressBars([""], overall=f"all {files} files, percent") as bars:

        def update(event: ProgressEvent) -> None:
            started.setdefault(event.stage)
            bars.update("", event.done, event.total, event.stage)
            bars.update_overall(int(100 * (len(started) - 1 + event.done / event.total) / files))
            if event.done == event.total:
                bars.log(f"{event.stage}: done")

        try:
            make(images.test, target, progress=update)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    echo(f"files: {target}/")
