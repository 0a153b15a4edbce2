"""The commands about datasets on disk: data get, data check and data where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, cast, final

import typer

from allrounder.data import DATASETS
from allrounder.data.archives import extract
from allrounder.data.base import Data
from allrounder.data.download import copy_in, fetch
from allrounder.data.named import data_of
from allrounder.data.published import PUBLISHED, Published, PublishedFile
from allrounder.data.store import (
    VARIABLE,
    absent,
    by_hand,
    cache_folder,
    folder_of,
    published,
    same_name,
    wrong,
)
from allrounder.display import Bars, err, grid, out, say
from allrounder.errors import DataError
from allrounder.values import nearest

app = typer.Typer(help="Get datasets, check them, and say where they are.", no_args_is_help=True)


def _names(incomplete: str) -> list[str]:
    return [name for name in PUBLISHED if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A dataset, such as CIFAR-10.", autocompletion=_names)]
Source = Annotated[
    Path | None, typer.Option("--from", help="A folder that has the files already, instead of the network.")
]
Checked = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_PATH", help="A dataset, an .npz file, or a folder.", autocompletion=_names
    ),
]


@app.command()
def get(name: Name, source: Source = None) -> None:
    """Fetch a dataset into the cache and verify it; what is there already is not fetched again.

    A download that breaks off goes on where it stopped when the command is called again.
    """
    with _told():
        kind, entry = published(name)
        folder = folder_of(kind)
        say(f"{kind}: {entry.about}; into {folder}")
        if entry.unpacked is not None and (folder / entry.unpacked).is_dir():
            say(f"{entry.unpacked}: already there, unpacked")
            return
        with Bars(out, [file.name for file in entry.files]) as bars:
            for number, file in enumerate(entry.files, 1):
                try:
                    bars.say(_get(file, folder, source, Meter(bars, file.name)))
                except DataError as error:
                    left = [f for f in entry.files[number:] if wrong(folder / f.name, f) is not None]
                    raise DataError("; ".join([str(error), *(by_hand(f, folder) for f in left)])) from error
        if entry.unpacked is not None:
            say(f"{entry.files[0].name}: unpacking into {folder / entry.unpacked}")
            extract(folder / entry.files[0].name, folder / entry.unpacked, entry.unpacked)


def _get(file: PublishedFile, folder: Path, source: Path | None, meter: Meter) -> str:
    checked = "no published checksum" if file.md5 is None else f"MD5 {file.md5} is right"
    if wrong(folder / file.name, file) is None:
        return f"{file.name}: already there, {checked}"
    if source is not None:
        copy_in(source / file.name, file, folder)
    else:
        meter.say(f"{file.name}: from {file.urls[0]}")
        fetch(file, folder, meter)
    return f"{file.name}: {_size((folder / file.name).stat().st_size)}, {checked}"


@app.command()
def check(what: Checked) -> None:
    """Verify the checksums of a dataset, read it, and count its images; exit 1 if anything is wrong."""
    kind, path, problems = same_name(what, PUBLISHED), Path(what).expanduser(), list[str]()
    with _told():
        if kind is None and path.is_dir():
            kind, folder = _recognise(path), path.absolute()
        else:
            folder = folder_of(kind or "")
        if kind is not None:
            problems += _verify(PUBLISHED[kind], folder)
        elif not path.is_file() and same_name(what, ("embedded",)) is None:
            known = ("embedded", *PUBLISHED)
            said = f"(known: {', '.join(known)}){nearest(what.lower(), known)}"
            raise DataError(f"{what}: no such dataset {said}, and no such file or folder")
    try:
        if kind is None or kind in DATASETS:
            _count(data_of(what) if kind is None else _spec(kind, folder).load())
        elif not problems:
            _see(kind, PUBLISHED[kind], folder)
    except (ValueError, OSError, RuntimeError) as error:
        problems.append(str(error))
    for problem in problems:
        say(f"error: {problem}", err)
    if problems:
        raise typer.Exit(1)
    say(f"{kind or what}: nothing is wrong")


def _spec(kind: str, folder: Path) -> Any:
    cls: Any = DATASETS[kind]
    return cls() if folder == folder_of(kind) else cls(folder=str(folder))


def _has_folder(cls: Any) -> bool:
    return "folder" in {field.name for field in fields(cls)}


def _recognise(folder: Path) -> str:
    """Which dataset a folder holds: one of whose files it has, or that can be read from it."""
    kinds = [kind for kind in PUBLISHED if kind in DATASETS and _has_folder(DATASETS[kind])]
    # Two sets have files of the same names, so that checksums come first.
    for kind in kinds:
        entry = PUBLISHED[kind]
        if any(wrong(folder / file.name, file) is None for file in (*entry.files, *entry.others)):
            return kind
    for kind in kinds:
        try:
            _spec(kind, folder.absolute()).load()
        except FileNotFoundError:
            continue
        except (ValueError, OSError, RuntimeError):
            pass  # it is this one, and damaged, as will be told
        return kind
    raise DataError(f"{folder}: holds none of these whole: {', '.join(kinds)}; name the dataset's folder")


def _verify(entry: Published, folder: Path) -> list[str]:
    """Compare the checksums of the files that are there; what is wrong with them."""
    problems: list[str] = []
    for file in (*entry.files, *entry.others):
        path = folder / file.name
        if path.is_file():
            said = wrong(path, file)
            checked = "no published checksum" if file.md5 is None else f"MD5 {file.md5} is right"
            say(f"{path}: {_size(path.stat().st_size)}, {said or checked}")
            problems += [] if said is None else [f"{path}: {said}"]
    return problems


def _see(kind: str, entry: Published, folder: Path) -> None:
    """Say what is there of a set that is only unpacked."""
    unpacked = folder / (entry.unpacked or "")
    if entry.unpacked is not None and unpacked.is_dir():
        say(f"{unpacked}: {_of(unpacked)}, no published checksum of single files")
    elif not all((folder / file.name).is_file() for file in entry.files):
        raise absent(kind, folder, [file.name for file in entry.files])


def _count(data: Data) -> None:
    """Print how many images of which shape there are, and how many of each class."""
    splits = {"test": data.test} if data.train is data.test else {"train": data.train, "test": data.test}
    shape = "x".join(map(str, data.shape))
    for name, split in splits.items():
        say(f"{data.name} {name}: {len(split)} images {shape}, {len(data.classes)} classes")
    labels = [cast(list[int], split.labels.tolist()) for split in splits.values()]
    counts = [Counter(numbers) for numbers in labels]
    rows = [(name, *(str(count[k]) for count in counts)) for k, name in enumerate(data.classes)]
    out.print(grid(("class", *splits), rows))


@app.command()
def where() -> None:
    """Say where the cache is, what is in it, and how to move it."""
    folder, moved = cache_folder(), os.environ.get(VARIABLE)
    say(f"cache: {folder} ({f'as {VARIABLE} says' if moved else f'{VARIABLE} moves it'})")
    with _told():
        present = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        rows = [(path.name, _of(path), _state(path)) for path in present if any(path.iterdir())]
    if rows:
        out.print(grid(("dataset", "what is there", "state"), rows))
    missing = [name for name in PUBLISHED if name not in {row[0] for row in rows}]
    if missing:
        say(f"allrounder data get NAME fetches: {', '.join(missing)}")


def _state(folder: Path) -> str:
    entry = PUBLISHED.get(folder.name)
    if any(folder.glob("*.part")):
        return "unfinished"
    if entry is None:
        return "of your own"
    whole = all((folder / file.name).is_file() for file in entry.files)
    return "fetched" if whole or (folder / (entry.unpacked or "none")).is_dir() else "in part"


def _of(folder: Path) -> str:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{len(sizes)} files, {_size(sum(sizes))}"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.1f} MB"


@contextmanager
def _told() -> Generator[None]:
    """Whatever a disk, a server or a file does wrong is one message."""
    try:
        yield
    except DataError:
        raise
    except (ValueError, OSError) as error:
        raise DataError(str(error)) from error


@final
class Meter:
    """The progress of a download, in kilobytes."""

    def __init__(self, bars: Bars, name: str):
        """Shown under the name of the file."""
        self.bars, self.name, self.total = bars, name, 0

    def begin(self, total: int, done: int) -> None:
        """Set the length, and what an earlier call fetched."""
        self.total = total
        self.step(done)

    def step(self, t: int) -> None:
        """Move the bar."""
        self.bars.show(self.name, t // 1000, max(self.total, t) // 1000, "KB")

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.bars.say(text)
