"""The local cache of dataset files: where they are, and whether they are the published ones."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from allrounder.config.fields import did_you_mean
from allrounder.data.files.catalog import PUBLISHED, PublishedDataset, PublishedFile
from allrounder.errors import DataError, MissingDataError

CACHE_VARIABLE = "ALLROUNDER_DATA"
"""The environment variable with the folder of the cache."""


def cache_folder() -> Path:
    """The folder that has one folder for every dataset."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("allrounder")


def dataset_folder(kind: str, folder: str | None = None) -> Path:
    """The folder with the files of a dataset: `folder`, or the parent if it is a file; else in the cache."""
    if folder is None:
        return cache_folder() / kind
    path = Path(folder).expanduser().absolute()
    return path.parent if path.is_file() else path


def match_name(text: str, names: Iterable[str]) -> str | None:
    """The name that equals a text up to case, dashes, underscores and spaces; None if there is none."""
    name_of = {re.sub("[-_ ]", "", name).lower(): name for name in names}
    return name_of.get(re.sub("[-_ ]", "", text).lower())


def find_published(text: str) -> tuple[str, PublishedDataset]:
    """Look up a published dataset: (its name, its entry). Raises DataError for an unknown name."""
    name = match_name(text, PUBLISHED)
    if name is None:
        hint = did_you_mean(text.lower(), PUBLISHED)
        raise DataError(f"{text}: no such dataset (known: {', '.join(PUBLISHED)}){hint}")
    return name, PUBLISHED[name]


def missing_error(kind: str, folder: Path, names: Iterable[str]) -> MissingDataError:
    """The error for files of a dataset that are not in their folder."""
    cache = dataset_folder(kind)
    command = f"allrounder data get {kind}" + ("" if folder == cache else f" (which puts it into {cache})")
    return MissingDataError(f"{folder}: has no {', '.join(names)}; put it there, or get it with: {command}")


def verify(path: Path, file: PublishedFile) -> str | None:
    """Compare a file on disk with the published one; return what is wrong with it, or None.

    The problem is worded to follow the file's name. Without a published checksum, the length is compared, and
    a zip archive must have its end.
    """
    try:
        return _find_problem(path, file)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _find_problem(path: Path, file: PublishedFile) -> str | None:
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which is not there"
    if not path.is_file():
        return "is not there"
    with path.open("rb") as content:
        if is_html(content.read(64)):
            return "is a web page, not the file itself"
        content.seek(0)
        if file.md5 is not None:
            md5 = hashlib.file_digest(content, "md5").hexdigest()
            return None if md5 == file.md5 else f"has MD5 {md5}, expected {file.md5}"
    if file.size is not None and (size := path.stat().st_size) != file.size:
        return f"has {size} bytes, expected {file.size}"
    complete = not file.name.endswith(".zip") or zipfile.is_zipfile(path)
    return None if complete else "is no zip archive, or one cut short"


def is_html(start: bytes) -> bool:
    """Whether a file starts as a web page; servers send one in place of a missing file."""
    return re.match(rb"\s*<(?:!doctype|html|\?xml)", start[:64].lower()) is not None


def manual_instructions(file: PublishedFile, folder: Path) -> str:
    """Where to put a file by hand, for a machine without a network."""
    checksum = f"MD5 {file.md5}" if file.md5 is not None else "no published checksum"
    kind = next((kind for kind, entry in PUBLISHED.items() if entry.unpacked and file in entry.files), None)
    then = "" if kind is None else f", and unpack it with: allrounder data get {kind}"
    return f"put it at {folder / file.name} ({checksum}, from {' or '.join(file.urls)}){then}"
