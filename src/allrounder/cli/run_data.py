"""The work of `allrounder data get`, `data check` and `data where`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from allrounder.cli.display import JobBar, ProgressBars, format_bytes, print_numbers
from allrounder.cli.echo import echo, echo_note
from allrounder.config.fields import adapter, kind_of
from allrounder.data import DATASETS
from allrounder.data.base import Data, Split
from allrounder.data.files import cache, integrity
from allrounder.data.files.catalog import PUBLISHED, PublishedDataset, PublishedFile
from allrounder.data.files.download import (
    DownloadError,
    copy_unpacked,
    copy_verified,
    download_file,
    find_unpacked,
    unpack,
)
from allrounder.data.inputs.by_name import load_full_data, resolve_dataset
from allrounder.errors import DataError, RunError


def get_dataset(name: str, source: Path | None) -> None:
    """Download a dataset into the cache, or copy it from a folder, and verify it."""
    with _as_data_error():
        kind, entry = _find_published(name)
        folder = cache.dataset_folder(kind)
        echo_note(f"{kind}: {entry.about}; into {folder}")
        if entry.unpacked is not None and integrity.has_files(inner := folder / entry.unpacked):
            if missing := integrity.missing_members(entry, inner):
                absent = ", ".join(missing)
                raise DataError(f"{inner}: is incomplete, it has no {absent}; move it away and call again")
            echo(f"{entry.unpacked}: already there, unpacked")
            return
        files = entry.files
        if source is not None:
            source = source.parent if source.is_file() else source
            files = _files_in(source, entry)
            if not files:
                _copy_unpacked(kind, entry, source)
                return
        with ProgressBars([file.name for file in files]) as bars:
            for number, file in enumerate(files, 1):
                bar = JobBar(bars, file.name, "KB", scale=1000, prefix="")
                try:
                    bar.log(_get_file(file, folder, source, bar))
                except DownloadError as error:
                    others = [other for other in files[number:] if cache.verify(folder / other.name, other)]
                    advice = [cache.manual_instructions(other, folder) for other in others]
                    raise DataError("; ".join([str(error), *advice])) from error
        if entry.unpacked is not None:
            echo_note(f"{entry.files[0].name}: unpacking into {folder / entry.unpacked}")
            unpack(entry.files[0], folder, entry.unpacked)


def _files_in(source: Path, entry: PublishedDataset) -> tuple[PublishedFile, ...]:
    """The published files to copy from a folder: those that a download gets, or equivalent ones that it has;
    empty if it holds the dataset unpacked instead."""
    if not source.is_dir():
        raise DataError(f"{source}: no such folder; give the folder that holds the files")
    for files in (entry.files, entry.alternatives):
        if files and all((source / file.name).is_file() for file in files):
            return files
    return () if find_unpacked(source, entry) else entry.files


def _copy_unpacked(kind: str, entry: PublishedDataset, source: Path) -> None:
    """Read an unpacked dataset, whose files have no published checksums, and copy it into the cache."""
    found = find_unpacked(source, entry)
    assert found is not None
    place, name = found
    target = cache.dataset_folder(kind) / name
    if integrity.has_files(target):
        echo(f"{target}: already there, unpacked")
        return
    spec = adapter(DATASETS[kind]).validate_python({"folder": str(place)})
    if problems := integrity.count_problems(entry, spec.load()):
        raise DataError(f"{place}: {'; '.join(problems)}")
    names = dict(entry.readable_folders)[name]
    copy_unpacked(place, target, [file for file in names if (place / file).is_file()])
    echo(f"{target}: {_describe_folder(target)}, no published checksum of single files")


def _find_published(name: str) -> tuple[str, PublishedDataset]:
    kind = cache.match_name(name, DATASETS)
    if kind is None or kind in PUBLISHED:
        return cache.find_published(name)
    if kind == "imagenet":
        raise DataError(
            f"{kind}: cannot be downloaded here; register at image-net.org and put its folders train and val "
            f"into {cache.dataset_folder(kind)}"
        )
    raise DataError(f"{kind}: there is nothing to download; known: {', '.join(PUBLISHED)}")


def _get_file(file: PublishedFile, folder: Path, source: Path | None, bar: JobBar) -> str:
    checked = _describe_checksum(file)
    if cache.verify(folder / file.name, file) is None:
        return f"{file.name}: already there, {checked}"
    if source is not None:
        copy_verified(source / file.name, file, folder, bar)
    else:
        bar.log(f"{file.name}: from {file.urls[0]}")
        download_file(file, folder, bar)
    return f"{file.name}: {format_bytes((folder / file.name).stat().st_size)}, {checked}"


def check_dataset(source: str) -> tuple[str, list[str]]:
    """Check a dataset; return its name and everything that is wrong with it."""
    kind, _, place = source.partition(":")
    arrays = cache.match_name(kind, [name for name in PUBLISHED if name not in DATASETS])
    with _as_data_error():
        problems = _check_images(source) if arrays is None else _check_arrays(arrays, place or None)
    return cache.match_name(source, (*PUBLISHED, *DATASETS)) or source, problems


def _check_images(source: str) -> list[str]:
    """Verify, read, count and decode a dataset; return what is wrong with it."""
    dataset = resolve_dataset(source)
    kind = None if isinstance(dataset, Path) else kind_of(dataset, DATASETS)
    entry = PUBLISHED.get(kind or "")
    problems: list[str] = []
    if entry is not None and kind is not None:
        problems += _verify_files(entry, cache.dataset_folder(kind, getattr(dataset, "folder", None)))
    try:
        data = load_full_data(dataset)
    except (ValueError, OSError, RuntimeError) as error:
        return [*problems, str(error)]
    splits = _print_counts(data)
    problems += [] if entry is None else integrity.count_problems(entry, data)
    with ProgressBars(list(splits)) as bars:
        for name, split in splits.items():
            bar = JobBar(bars, name, "images")
            bar.begin(len(split), 0)
            problems += integrity.find_damaged_images(split, bar.step)
    return problems


def _check_arrays(kind: str, place: str | None) -> list[str]:
    """Verify a dataset that is an unpacked archive of arrays; return what is wrong with it."""
    entry = PUBLISHED[kind]
    folder = cache.dataset_folder(kind, place)
    problems = _verify_files(entry, folder)
    inner = folder / (entry.unpacked or "")
    if not inner.is_dir() and any((folder / name).is_file() for name in entry.members):
        inner = folder  # the path names the unpacked folder itself
    if inner.is_dir():
        echo_note(f"{inner}: {_describe_folder(inner)}, no published checksum of single files")
        return [*problems, *integrity.array_problems(entry, inner)]
    names = [file.name for file in entry.files]
    if not all((folder / name).is_file() for name in names):
        raise cache.missing_error(kind, folder, names)
    return problems or [f"{folder / names[0]}: is not unpacked; unpack it with: allrounder data get {kind}"]


def _describe_checksum(file: PublishedFile) -> str:
    return "no published checksum" if file.md5 is None else f"MD5 {file.md5} is right"


def _verify_files(entry: PublishedDataset, folder: Path) -> list[str]:
    """Compare the checksums of the files that are there; return what is wrong with them."""
    problems: list[str] = []
    for file in entry.all_files:
        path = folder / file.name
        if path.is_file():
            problem = cache.verify(path, file)
            echo_note(f"{path}: {format_bytes(path.stat().st_size)}, {problem or _describe_checksum(file)}")
            problems += [] if problem is None else [f"{path}: {problem}"]
    return problems


def _print_counts(data: Data) -> dict[str, Split]:
    """Print the number of images, their shape and the images per class; return the splits."""
    splits = {"test": data.test} if data.train is data.test else {"train": data.train, "test": data.test}
    shape = "x".join(map(str, data.shape))
    for name, split in splits.items():
        echo(f"{data.name} {name}: {len(split)} images {shape}, {len(data.classes)} classes")
    counts = [Counter(cast(list[int], split.labels.tolist())) for split in splits.values()]
    rows = [(name, *(str(count[k]) for count in counts)) for k, name in enumerate(data.classes)]
    print_numbers(("class", *splits), rows)
    return splits


def print_cache() -> None:
    """Print where the cache is, what it holds, and how to move it."""
    folder = cache.cache_folder()
    variable = cache.CACHE_VARIABLE
    how = f"set by {variable}" if os.environ.get(variable) else f"set {variable} to move it"
    echo(f"cache: {folder} ({how})")
    with _as_data_error():
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        present = [path for path in paths if path.is_dir() and any(path.iterdir())]
        rows = [(path.name, _describe_folder(path), _describe_state(path)) for path in present]
    if rows:
        print_numbers(("dataset", "content", "state"), rows)
    if missing := [name for name in PUBLISHED if name not in {row[0] for row in rows}]:
        echo_note(f"allrounder data get NAME downloads: {', '.join(missing)}")


def _describe_state(folder: Path) -> str:
    entry = PUBLISHED.get(folder.name)
    if any(folder.glob("*.part")):
        return "unfinished"
    if entry is None:
        return "not a known dataset"
    if entry.unpacked is not None:
        inner = folder / entry.unpacked
        complete = integrity.has_files(inner) and not integrity.missing_members(entry, inner)
    else:
        versions = [files for files in (entry.files, entry.alternatives) if files]
        packed = any(all((folder / file.name).is_file() for file in files) for files in versions)
        complete = packed or find_unpacked(folder, entry) is not None
    return "complete" if complete else "incomplete"


def _describe_folder(folder: Path) -> str:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{len(sizes)} files, {format_bytes(sum(sizes))}"


@contextmanager
def _as_data_error() -> Generator[None]:
    """Turn every error of a disk, a server or a file into a DataError."""
    try:
        yield
    except DataError:
        raise
    except (ValueError, OSError, RunError) as error:
        raise DataError(str(error)) from error
