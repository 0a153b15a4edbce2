"""The folder of a published study: what its table and its report need, without weights.

published.json        the SHA-256 of every other file
study.toml            the study
study.json            its manifest
LABEL/seed-N          of every training: recipe, log, environment, and the manifests of its weights
LABEL/seed-N/eval     the outcome of each set of weights, and beside it its signature
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from allrounder.errors import RunError
from allrounder.system.checked_files import read_json, write_json
from allrounder.system.files import hash_file

PUBLISHED_FILE = "published.json"
FORMAT_VERSION = 1
"""Of published folders; increased by every incompatible change."""
AGAIN = "publish the study again with: allrounder publish"


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
        fields = read_json(file, AGAIN, FORMAT_VERSION)
        digests: Any = fields.get("files")
        if not isinstance(digests, dict) or not all(map(_is_text, cast(dict[str, Any], digests).values())):
            raise RunError(f"{file}: expected the digest of every file under files; {AGAIN}")
        return cls(folder, cast(dict[str, str], digests))

    def save(self) -> None:
        """Write the list."""
        fields = {"format": FORMAT_VERSION, "files": dict(sorted(self.digests.items()))}
        write_json(self.folder / PUBLISHED_FILE, fields)

    def check_file(self, name: str) -> None:
        """Raise RunError unless a file is there as it was published."""
        file = self.folder / name
        if name not in self.digests:
            reason = f"is not listed in {PUBLISHED_FILE}, so it was added or its publishing was interrupted"
            raise RunError(f"{file}: {reason}; remove it, or {AGAIN}")
        try:
            found = hash_file(file)
        except OSError as error:
            problem = f"was published, but cannot be read ({error.strerror})"
            raise RunError(f"{file}: {problem}; restore it from a copy, or {AGAIN}") from None
        if found != self.digests[name]:
            change = f"has the SHA-256 {found[:16]}, was published with {self.digests[name][:16]}"
            raise RunError(f"{file}: {change}: it was changed; restore it from a copy, or {AGAIN}")

    def check_files_below(self, name: str) -> None:
        """Raise RunError unless all files below a folder are there as they were published, and no others.
        Hidden files do not count."""
        found = [path for path in (self.folder / name).rglob("*") if not path.name.startswith(".")]
        names = {path.relative_to(self.folder).as_posix() for path in found if path.is_file()}
        for file in sorted(names.union(file for file in self.digests if file.startswith(f"{name}/"))):
            self.check_file(file)


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published study."""
    return (folder / PUBLISHED_FILE).is_file()


def find_published(folder: Path) -> PublishedFiles | None:
    """Return the list of a published folder; None if the study was trained in the folder."""
    return PublishedFiles.load(folder) if is_published(folder) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)
