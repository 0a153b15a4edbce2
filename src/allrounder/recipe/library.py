"""Recipe files: those shipped with the package, by name, and any other TOML file.

A shipped recipe is a file in a folder of `recipes`, or an entry of the folder's `_variants.toml`, which lists
recipes that differ from another one in a few fields. Other files that start with "_" are only extended.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePath
from typing import cast

from allrounder.config.decode import is_table
from allrounder.config.fields import did_you_mean
from allrounder.config.text import shorten
from allrounder.config.toml import Table, is_file, read_toml
from allrounder.errors import RecipeError

VARIANTS_FILE = "_variants.toml"
FileKey = tuple[str, str | None]
"""Tells a recipe file, or an entry of a file of variants, from others, however its path is written."""


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file, or one entry of a file of variants."""

    file: Traversable
    folder: Traversable
    """Where the files are that it extends."""
    shown_folder: str
    """The folder in messages: a path, or the name of a folder of shipped recipes."""
    entry: str | None = None

    @property
    def label(self) -> str:
        """The file and the entry in messages."""
        path = str(PurePath(self.shown_folder) / self.file.name)
        return path if self.entry is None else f"{path} ({self.entry})"

    @property
    def key(self) -> FileKey:
        """The path of the file, and the entry."""
        return str(self.file.resolve() if isinstance(self.file, Path) else self.file), self.entry

    def read(self) -> Table:
        """Read the file, or the entry, as a raw table."""
        if self.entry is None:
            return read_toml(self.file, shorten(self.label))
        return deepcopy(_read_variants(self.folder)[self.entry])

    def find_parent(self, name: str) -> RecipeFile:
        """Return what `extends = name` means in this file: a shipped recipe, or a file beside it."""
        if name in _find_shipped():
            return _find_shipped()[name]
        file = self.folder / name
        shown = PurePath(self.shown_folder) / name
        if not is_file(file):
            problem = f"{shorten(str(shown))}: {_describe_missing(file)}, and no shipped recipe of that name"
            raise RecipeError(f"{self.label}: extends: {problem}{did_you_mean(name, _find_shipped())}")
        folder = file.parent if isinstance(file, Path) else self.folder
        return RecipeFile(file, folder, str(shown.parent))


def _describe_missing(file: Traversable) -> str:
    """Say why a path leads to no file."""
    is_something = isinstance(file, Path) and os.path.exists(file)
    return "a folder, a pipe or a device, expected a file" if is_something else "no such file"


def shipped_recipes() -> tuple[str, ...]:
    """Return the names of the shipped recipes, such as "cifar10/trades-6"."""
    return tuple(_find_shipped())


def find_recipe(source: str | Path) -> RecipeFile:
    """Return the file of a shipped recipe, given its name, or the file at a path."""
    files = _find_shipped()
    if str(source) in files:
        return files[str(source)]
    path = Path(source)
    if is_file(path):
        return RecipeFile(path, path.parent, str(path.parent))
    problem = (
        f"{_describe_missing(path)}, and no shipped recipe of that name{did_you_mean(str(source), files)}"
    )
    raise RecipeError(f"{shorten(str(source))}: {problem} (see: allrounder list recipes)")


@cache
def _find_shipped() -> dict[str, RecipeFile]:
    """Return the shipped recipes by name, in the order of the files that they are or would be."""
    root = resources.files("allrounder.recipe") / "recipes"
    recipes: dict[str, RecipeFile] = {}
    for folder in [item for item in root.iterdir() if item.is_dir()]:
        for file in folder.iterdir():
            if file.name.endswith(".toml") and not file.name.startswith("_"):
                name = f"{folder.name}/{file.name.removesuffix('.toml')}"
                recipes[name] = RecipeFile(file, folder, folder.name)
        for entry in _read_variants(folder):
            name = f"{folder.name}/{entry}"
            recipes[name] = RecipeFile(folder / VARIANTS_FILE, folder, folder.name, entry)
    return dict(sorted(recipes.items(), key=lambda item: f"{item[0]}.toml"))


@cache
def _read_variants(folder: Traversable) -> dict[str, Table]:
    """Read the variants of a folder of shipped recipes, by name."""
    file = folder / VARIANTS_FILE
    label = f"{folder.name}/{VARIANTS_FILE}"
    entries = read_toml(file, label) if file.is_file() else {}
    for name, entry in entries.items():
        if not is_table(entry) or (folder / f"{name}.toml").is_file():
            raise RecipeError(f"{label}: {name}: expected a table, and no file of the same name")
    return cast(dict[str, Table], entries)
