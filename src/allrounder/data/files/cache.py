"""The local cache of dataset files: where they are, and whether they are the published ones."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pooch

from allrounder.config.fields import did_you_mean
from allrounder.data.files.catalog import PUBLISHED, PublishedDataset, PublishedFile
from allrounder.errors import DataError

CACHE_VARIABLE = "ALLROUNDER_DATA"
"""The environment variable with the folder of the cache."""
HTML_START = rb"\s*<(?:!doctype|html|\?xml)"
"""A pattern of the beginning of a web page, in lower case."""


def cache_folder() -> Path:
    """The folder that has one folder for every dataset."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser().absolute() if override else Path(pooch.os_cache("allrounder"))


def dataset_folder(kind: str, folder: str | None = None) -> Path:
    """The folder with the files of a dataset: `folder`, or the parent if it is a file; else in the cache."""
    if folder is None:
        return cache_folder() / kind
    path = Path(folder).expanduser().absolute()
    return path.parent if path.is_file() else path


def match_name(text: str, names: Iterable[str]) -> str | None:
    """The name that equals a text up to case, dashes, underscores and spaces; None if there is none."""
    return next((name for name in names if _normalise_name(name) == _normalise_name(text)), None)


def _normalise_name(text: str) -> str:
    return re.sub("[-_ ]", "", text).lower()


def find_published(text: str) -> tuple[str, PublishedDataset]:
    """Look up a published dataset: (its name, its entry). Raises DataError for an unknown name."""
    name = match_name(text, PUBLISHED)
    if name is None:
        hint = did_you_mean(text.lower(), PUBLISHED)
        raise DataError(f"{text}: no such dataset (known: {', '.join(PUBLISHED)}){hint}")
    return name, PUBLISHED[name]


def missing_error(kind: str, folder: Path, names: Iterable[str]) -> FileNotFoundError:
    """The error for files of a dataset that are not in their folder."""
    missing = ", ".join(names)
    elsewhere = "" if folder == dataset_folder(kind) else f" (which puts it into {dataset_folder(kind)})"
    return FileNotFoundError(
        f"{folder}: has no {missing}; put it there, or get it with: allrounder data get {kind}{elsewhere}"
    )


def verify(path: Path, file: PublishedFile) -> str | None:
    """Compare a file on disk with the published one; return what is wrong with it, or None.

    The problem is worded to follow the file's name. Without a published checksum, the length is compared, and
    a zip archive must have its end.
    """
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which is not there"
    if not path.is_file():
        return "is not there"
    if is_html(path):
        return "is a web page, not the file itself"
    if file.md5 is None:
        if file.size is not None and (size := path.stat().st_size) != file.size:
            return f"has {size} bytes, expected {file.size}"
        complete = not file.name.endswith(".zip") or zipfile.is_zipfile(path)
        return None if complete else "is no zip archive, or one cut short"
    md5 = file_md5(path)
    return None if md5 == file.md5 else f"has MD5 {md5}, expected {file.md5}"


def file_md5(path: Path) -> str:
    """The MD5 checksum of a file, which most datasets publish."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def is_html(path: Path) -> bool:
    """Whether a file is a web page; servers send one in place of a missing file."""
    with path.open("rb") as file:
        return re.match(HTML_START, file.read(64).lower()) is not None


def manual_instructions(file: PublishedFile, folder: Path) -> str:
    """Where to put a file by hand, for a machine without a network."""
    checksum = f"MD5 {file.md5}" if file.md5 is not None else "no published checksum"
    kind = next((kind for kind, entry in PUBLISHED.items() if entry.unpacked and file in entry.files), None)
    then = "" if kind is None else f", and unpack it with: allrounder data get {kind}"
    return f"put it at {folder / file.name} ({checksum}, from {' or '.join(file.urls)}){then}"
