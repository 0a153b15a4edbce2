"""The commands about datasets on disk: data get, data check and data where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast, final

import typer

from allrounder.cli.corruptions import make_c_, make_p_
from allrounder.cli.display import Bars, err, grid, out, say
from allrounder.config.fields import kind_of
from allrounder.data import DATASETS
from allrounder.data.base import Data, Split
from allrounder.data.files.cache import (
    VARIABLE,
    absent,
    by_hand,
    cache_folder,
    folder_of,
    published,
    same_name,
    wrong,
)
from allrounder.data.files.catalog import PUBLISHED, Published, PublishedFile
from allrounder.data.files.download import Unfetched, copy_in, fetch, unpack
from allrounder.data.files.integrity import (
    damaged_images,
    is_there,
    lacking,
    wrong_arrays,
    wrong_counts,
)
from allrounder.data.inputs.by_name import named_data, whole_data
from allrounder.errors import DataError, RunError

app = typer.Typer(
    help="Get datasets, check them, say where they are, and corrupt them.", no_args_is_help=True
)
app.command("make-c")(make_c_)
app.command("make-p")(make_p_)


def _names(incomplete: str) -> list[str]:
    return [name for name in PUBLISHED if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A dataset, such as CIFAR-10.", autocompletion=_names)]
Source = Annotated[
    Path | None, typer.Option("--from", help="A folder that has the files already, instead of the network.")
]
Checked = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_PATH", help="A dataset, an .npz file, a folder, or KIND:PATH.", autocompletion=_names
    ),
]


@app.command()
def get(name: Name, source: Source = None) -> None:
    """Fetch a dataset into the cache and verify it; what is there already is not fetched again.

    A download that breaks off goes on where it stopped when the command is called again.
    """
    with _told():
        kind, entry = _published(name)
        folder = folder_of(kind)
        say(f"{kind}: {entry.about}; into {folder}")
        if entry.unpacked is not None and is_there(folder / entry.unpacked):
            if missing := lacking(entry, folder / entry.unpacked):
                said = f"has no {', '.join(missing)}, so it is not whole; move it away, and call again"
                raise DataError(f"{folder / entry.unpacked}: {said}")
            say(f"{entry.unpacked}: already there, unpacked")
            return
        with Bars(out, [file.name for file in entry.files]) as bars:
            for number, file in enumerate(entry.files, 1):
                try:
                    bars.say(_get(file, folder, source, Meter(bars, file.name)))
                except Unfetched as error:
                    left = [f for f in entry.files[number:] if wrong(folder / f.name, f) is not None]
                    raise DataError("; ".join([str(error), *(by_hand(f, folder) for f in left)])) from error
        if entry.unpacked is not None:
            say(f"{entry.files[0].name}: unpacking into {folder / entry.unpacked}")
            unpack(entry.files[0], folder, entry.unpacked)


def _published(name: str) -> tuple[str, Published]:
    kind = same_name(name, DATASETS)
    if kind is None or kind in PUBLISHED:
        return published(name)
    if kind == "imagenet":
        said = "its owners give it to those who register, at image-net.org; put its folders train and val"
        raise DataError(f"{kind}: cannot be fetched: {said} into {folder_of(kind)}")
    raise DataError(f"{kind}: there is nothing to fetch; known: {', '.join(PUBLISHED)}")


def _get(file: PublishedFile, folder: Path, source: Path | None, meter: Meter) -> str:
    checked = "no published checksum" if file.md5 is None else f"MD5 {file.md5} is right"
    if wrong(folder / file.name, file) is None:
        return f"{file.name}: already there, {checked}"
    if source is not None:
        copy_in(source / file.name, file, folder, meter)
    else:
        meter.say(f"{file.name}: from {file.urls[0]}")
        fetch(file, folder, meter)
    return f"{file.name}: {_size((folder / file.name).stat().st_size)}, {checked}"


@app.command()
def check(what: Checked) -> None:
    """Verify the checksums of a dataset, decode all its images, and count them; exit 1 if anything is wrong.

    KIND:PATH says what a folder holds, where that cannot be seen.
    """
    kind, _, place = what.partition(":")
    arrays = same_name(kind, [name for name in PUBLISHED if name not in DATASETS])
    with _told():
        problems = _check_images(what) if arrays is None else _check_arrays(arrays, place or None)
    for problem in problems:
        say(f"error: {problem}", err)
    if problems:
        raise typer.Exit(1)
    say(f"{same_name(what, (*PUBLISHED, *DATASETS)) or what}: nothing is wrong")


def _check_images(what: str) -> list[str]:
    """Verify, read, count and decode a dataset; what is wrong with it."""
    found = named_data(what)
    kind = None if isinstance(found, Path) else kind_of(found, DATASETS)
    entry, problems = PUBLISHED.get(kind or ""), list[str]()
    if entry is not None and kind is not None:
        problems += _verify(entry, folder_of(kind, getattr(found, "folder", None)))
    try:
        data = whole_data(found)
    except (ValueError, OSError, RuntimeError) as error:
        return [*problems, str(error)]
    splits = _count(data)
    problems += [] if entry is None else wrong_counts(entry, data)
    with Bars(out, list(splits)) as bars:
        for name, split in splits.items():
            size = len(split)
            problems += damaged_images(split, lambda t, n=name, s=size: bars.show(n, t, s, "images"))
    return problems


def _check_arrays(kind: str, place: str | None) -> list[str]:
    """Verify a set that is only unpacked; what is wrong with it."""
    entry, folder = PUBLISHED[kind], folder_of(kind, place)
    problems, inner = _verify(entry, folder), folder / (entry.unpacked or "")
    if not inner.is_dir() and any((folder / name).is_file() for name in entry.members):
        inner = folder  # it was named itself
    if inner.is_dir():
        say(f"{inner}: {_of(inner)}, no published checksum of single files")
        return [*problems, *wrong_arrays(entry, inner)]
    names = [file.name for file in entry.files]
    if not all((folder / name).is_file() for name in names):
        raise absent(kind, folder, names)
    return problems or [f"{folder / names[0]}: is not unpacked; unpack it with: allrounder data get {kind}"]


def _verify(entry: Published, folder: Path) -> list[str]:
    """Compare the checksums of the files that are there; what is wrong with them."""
    problems: list[str] = []
    for file in entry.known:
        path = folder / file.name
        if path.is_file():
            said = wrong(path, file)
            checked = "no published checksum" if file.md5 is None else f"MD5 {file.md5} is right"
            say(f"{path}: {_size(path.stat().st_size)}, {said or checked}")
            problems += [] if said is None else [f"{path}: {said}"]
    return problems


def _count(data: Data) -> dict[str, Split]:
    """Print how many images of which shape there are, and how many of each class; the splits."""
    splits = {"test": data.test} if data.train is data.test else {"train": data.train, "test": data.test}
    shape = "x".join(map(str, data.shape))
    for name, split in splits.items():
        say(f"{data.name} {name}: {len(split)} images {shape}, {len(data.classes)} classes")
    labels = [cast(list[int], split.labels.tolist()) for split in splits.values()]
    counts = [Counter(numbers) for numbers in labels]
    rows = [(name, *(str(count[k]) for count in counts)) for k, name in enumerate(data.classes)]
    out.print(grid(("class", *splits), rows))
    return splits


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
    if entry.unpacked is not None:
        inner = folder / entry.unpacked
        return "fetched" if is_there(inner) and not lacking(entry, inner) else "in part"
    return "fetched" if whole else "in part"


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
    except (ValueError, OSError, RunError) as error:
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
