"""The files of recipes: those inside the package, by name, and anybody's."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from allrounder.config.decode import Table
from allrounder.config.fields import nearest
from allrounder.errors import RecipeError


def shipped() -> dict[str, Traversable]:
    """The recipes inside the package, by name."""
    return dict(_shipped())


@cache  # every recipe that is read asks for them
def _shipped() -> dict[str, Traversable]:
    root = resources.files("allrounder.recipe") / "recipes"
    found: dict[str, Traversable] = {}
    for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
        if folder.is_dir():
            for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
                if file.name.endswith(".toml") and not file.name.startswith("_"):
                    found[f"{folder.name}/{file.name.removesuffix('.toml')}"] = file
    return found


def locate(source: str | Path) -> Traversable:
    """A shipped recipe by its name, or a file."""
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    path = Path(source)
    if path.is_file():
        return path
    hint = nearest(str(source), known)
    raise RecipeError(
        f"{source}: no such file, and no shipped recipe of that name{hint} (see: allrounder list recipes)"
    )


def beside(source: str | Path, file: Traversable, base: object) -> Traversable:
    """The file that a recipe says it extends."""
    if isinstance(file, Path):
        return file.parent / str(base)
    return resources.files("allrounder.recipe") / "recipes" / str(source).split("/")[0] / str(base)


def read(file: Traversable) -> Table:
    """A TOML file as a raw table."""
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise RecipeError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None


def parse(text: str, source: str) -> Table:
    """TOML text as a raw table."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{source}: not TOML: {error}") from None
