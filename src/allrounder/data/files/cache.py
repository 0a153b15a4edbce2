"""Where the files of datasets lie on this machine, and whether they are the published ones."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pooch

from allrounder.config.fields import nearest
from allrounder.data.files.catalog import PUBLISHED, Published, PublishedFile
from allrounder.errors import DataError

VARIABLE = "ALLROUNDER_DATA"
"""The environment variable that moves the cache."""
PAGE = rb"\s*<(?:!doctype|html|\?xml)"
"""How a web page begins, in lower case."""


def cache_folder() -> Path:
    """The folder with a folder for every dataset."""
    moved = os.environ.get(VARIABLE)
    return Path(moved).expanduser().absolute() if moved else Path(pooch.os_cache("allrounder"))


def folder_of(kind: str, folder: str | None = None) -> Path:
    """Where the files of a dataset are: in a folder that was named, or whose file was; or in the cache."""
    if folder is None:
        return cache_folder() / kind
    path = Path(folder).expanduser().absolute()
    return path.parent if path.is_file() else path


def same_name(text: str, names: Iterable[str]) -> str | None:
    """The one of the names that a text means, whatever its case, dashes and underscores; or none."""
    return next((name for name in names if _letters(name) == _letters(text)), None)


def _letters(text: str) -> str:
    return re.sub("[-_ ]", "", text).lower()


def published(text: str) -> tuple[str, Published]:
    """A published dataset by its name."""
    name = same_name(text, PUBLISHED)
    if name is None:
        hint = nearest(text.lower(), PUBLISHED)
        raise DataError(f"{text}: no such dataset (known: {', '.join(PUBLISHED)}){hint}")
    return name, PUBLISHED[name]


def absent(kind: str, folder: Path, names: Iterable[str]) -> FileNotFoundError:
    """The error where files of a dataset are not in their folder."""
    missing = ", ".join(names)
    elsewhere = "" if folder == folder_of(kind) else f" (which puts it into {folder_of(kind)})"
    return FileNotFoundError(
        f"{folder}: has no {missing}; put it there, or get it with: allrounder data get {kind}{elsewhere}"
    )


def wrong(path: Path, file: PublishedFile) -> str | None:
    """What is wrong with a file on disk, in words that follow its name; nothing if it is the published one.

    Where no checksum was published, it must have the right length, and an archive its end.
    """
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which is not there"
    if not path.is_file():
        return "is not there"
    if is_page(path):
        return "is a web page, not the file itself"
    if file.md5 is None:
        if file.size is not None and (got := path.stat().st_size) != file.size:
            return f"has {got} bytes, expected {file.size}"
        whole = not file.name.endswith(".zip") or zipfile.is_zipfile(path)
        return None if whole else "is no zip archive, or one cut short"
    found = md5_of(path)
    return None if found == file.md5 else f"has MD5 {found}, expected {file.md5}"


def md5_of(path: Path) -> str:
    """The checksum of a file, as datasets publish it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def is_page(path: Path) -> bool:
    """Whether a file is a web page, as servers send in place of what they do not have."""
    with path.open("rb") as file:
        return re.match(PAGE, file.read(64).lower()) is not None


def by_hand(file: PublishedFile, folder: Path) -> str:
    """Which file to put where, for a machine without a network."""
    known = f"MD5 {file.md5}" if file.md5 is not None else "no published checksum"
    packed = next((kind for kind, entry in PUBLISHED.items() if entry.unpacked and file in entry.files), None)
    then = "" if packed is None else f", and unpack it with: allrounder data get {packed}"
    return f"put it at {folder / file.name} ({known}, from {' or '.join(file.urls)}){then}"
