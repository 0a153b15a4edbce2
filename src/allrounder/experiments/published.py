"""The folder of a published study: what its table and its report need, without weights.

published.json        the SHA-256 of every other file
study.toml            the study
study.json            its manifest
LABEL/seed-N          of every training: recipe, log, environment, and the manifests of its weights
LABEL/seed-N/eval     the outcome of each set of weights, and beside it its signature
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, final

from allrounder.errors import RunError
from allrounder.system.checked_files import read_json, write_json
from allrounder.system.files import hash_file

PUBLISHED_FILE = "published.json"
FORMAT_VERSION = 1
"""Of published folders; increased by every incompatible change."""
AGAIN = "publish the study again with: allrounder publish"
REMOVE = f"remove the folder and {AGAIN}"
"""What to do if publishing again cannot replace a damaged file."""
INNER_PATH = 'a relative path with slashes and without ".."'


@final
@dataclass(frozen=True)
class PublishedFiles:
    """The files of a published study, by their path in its folder, with their SHA-256."""

    folder: Path
    digests: Mapping[str, str]

    @classmethod
    def load(cls, folder: Path) -> PublishedFiles:
        """Read the list of a published folder."""
        file = folder / PUBLISHED_FILE
        fields = read_json(file, REMOVE, FORMAT_VERSION)
        digests: Any = fields.get("files")
        if not isinstance(digests, dict) or not all(map(_is_text, cast(dict[str, Any], digests).values())):
            expected = "expected the digest of every file under files"
            raise RunError(f"{file}: {expected}; restore it from version control, or {REMOVE}")
        for name in cast(dict[str, str], digests):
            if not is_inner_path(name):
                problem = f"got {name!r} under files, expected {INNER_PATH}"
                raise RunError(f"{file}: {problem}; restore it from version control, or {REMOVE}")
        return cls(folder, cast(dict[str, str], digests))

    def save(self) -> None:
        """Write the list."""
        fields = {"format": FORMAT_VERSION, "files": dict(sorted(self.digests.items()))}
        write_json(self.folder / PUBLISHED_FILE, fields)

    def check_file(self, name: str, advice: str = AGAIN) -> None:
        """Raise RunError unless a file is there as it was published; `advice` says how to replace a changed
        one without a copy."""
        file = self.folder / name
        if name not in self.digests:
            reason = f"is not listed in {PUBLISHED_FILE}, so it was added or its publishing was interrupted"
            raise RunError(f"{file}: {reason}; remove it, or {AGAIN}")
        check_no_links(self.folder, [name], f"restore it from a copy, or {REMOVE}")
        try:
            if not stat.S_ISREG(file.lstat().st_mode):
                problem = "is a folder or a device, expected a regular file"
                raise RunError(f"{file}: {problem}; remove it, restore it from a copy, or {REMOVE}")
            found = hash_file(file)
        except OSError as error:
            problem = f"was published, but cannot be read ({error.strerror})"
            raise RunError(f"{file}: {problem}; restore it from a copy, or {AGAIN}") from None
        if found != self.digests[name]:
            change = f"has the SHA-256 {found[:16]}, was published with {self.digests[name][:16]}"
            raise RunError(f"{file}: {change}: it was changed; restore it from a copy, or {advice}")

    def names_below(self, name: str) -> list[str]:
        """Return the published files below a folder."""
        return [file for file in self.digests if file.startswith(f"{name}/")]

    def check_files_below(self, name: str, advice: str = AGAIN) -> None:
        """Raise RunError unless all files below a folder are there as they were published, and no others;
        `advice` is that of `check_file`. Hidden files do not count."""
        found = [path for path in (self.folder / name).rglob("*") if not path.name.startswith(".")]
        files = [path for path in found if path.is_symlink() or not path.is_dir()]
        names = {path.relative_to(self.folder).as_posix() for path in files}
        for file in sorted(names.union(self.names_below(name))):
            self.check_file(file, advice)


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published study."""
    return (folder / PUBLISHED_FILE).is_file()


def find_published(folder: Path) -> PublishedFiles | None:
    """Return the list of a published folder; None if the study was trained in the folder."""
    return PublishedFiles.load(folder) if is_published(folder) else None


def check_published_files(folder: Path) -> None:
    """Raise RunError if a folder is in a published study and is not as it was published."""
    for path in dict.fromkeys((Path(os.path.abspath(folder)), folder.resolve())):  # links may lead in or out
        if (parent := next(filter(is_published, path.parents), None)) is not None:
            PublishedFiles.load(parent).check_files_below(path.relative_to(parent).as_posix())


def is_inner_path(name: str) -> bool:
    """Whether a name from a file is a plain relative path, so that it is below the folder it is joined to."""
    path = PurePosixPath(name)
    is_plain = path.as_posix() == name and "\\" not in name and "\0" not in name
    return is_plain and bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def check_no_links(folder: Path, names: Iterable[str], advice: str) -> None:
    """Raise RunError if a path below a folder is a symbolic link or goes through one."""
    paths = [PurePosixPath(name) for name in names]
    inner = dict.fromkeys(part for path in paths for part in (*reversed(path.parents), path) if part.parts)
    for path in inner:
        if (folder / path).is_symlink():
            problem = "is a symbolic link, expected none in a published study"
            raise RunError(f"{folder / path}: {problem}; {advice}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)
