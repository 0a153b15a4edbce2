"""Recipe files: those shipped with the package, by name, and any other TOML file."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from allrounder.config.decode import Table
from allrounder.config.fields import did_you_mean
from allrounder.errors import RecipeError


def shipped_recipes() -> dict[str, Traversable]:
    """Return the files of the shipped recipes by name, such as "cifar10/trades"."""
    return dict(_find_shipped())


@cache
def _find_shipped() -> dict[str, Traversable]:
    root = resources.files("allrounder.recipe") / "recipes"
    files: dict[str, Traversable] = {}
    for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
        if folder.is_dir():
            for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
                if file.name.endswith(".toml") and not file.name.startswith("_"):
                    files[f"{folder.name}/{file.name.removesuffix('.toml')}"] = file
    return files


def find_recipe(source: str | Path) -> Traversable:
    """Return the file of a shipped recipe, given its name, or the file at a path."""
    files = shipped_recipes()
    if str(source) in files:
        return files[str(source)]
    path = Path(source)
    if path.is_file():
        return path
    hint = did_you_mean(str(source), files)
    raise RecipeError(
        f"{source}: no such file, and no shipped recipe of that name{hint} (see: allrounder list recipes)"
    )


def resolve_parent(source: str | Path, file: Traversable, parent: object) -> Traversable:
    """Return the file that the recipe `source`, read from `file`, extends."""
    if isinstance(file, Path):
        return file.parent / str(parent)
    return resources.files("allrounder.recipe") / "recipes" / str(source).split("/")[0] / str(parent)


def read_toml(file: Traversable) -> Table:
    """Read a TOML file as a raw table."""
    try:
        return parse_toml(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise RecipeError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None


def parse_toml(text: str, source: str) -> Table:
    """Parse TOML text as a raw table."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{source}: not TOML: {error}") from None
