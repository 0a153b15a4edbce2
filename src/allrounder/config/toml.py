"""Read TOML files and texts that others wrote, in bounded time and memory."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from typing import Any, cast

from allrounder.config.text import MAX_LINE, shorten
from allrounder.errors import RecipeError

Table = dict[str, Any]
MAX_BYTES = 2**20
"""Size of a TOML file; the largest one shipped has 11 KB."""
MAX_DEPTH = 32
"""Levels of tables and lists inside each other; what reads them calls itself for every level."""
MAX_SQUARED_DOTS = 10**7
"""Sum, over all lines, of the squared number of dots: tomllib takes time that is quadratic in the parts of a
dotted key, which is at most one line."""
CHUNK_BYTES = 2**20
MIN_INT, MAX_INT = -(2**63), 2**63 - 1
"""The whole numbers that TOML guarantees. Python does not print much larger ones."""


def parse_toml(text: str, source: str) -> Table:
    """Parse TOML text as a raw table; raise RecipeError, which calls the text `source`."""
    try:
        return load_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{source}: not TOML: {shorten(str(error), MAX_LINE)}") from None
    except ValueError as error:
        raise RecipeError(f"{source}: {error}") from None


def read_toml(file: Traversable, source: str) -> Table:
    """Read a TOML file as a raw table; raise RecipeError, which calls the file `source`."""
    try:
        text = read_limited(file, MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise RecipeError(f"{source}: cannot be read: {error}") from None
    return parse_toml(text, source)


def load_toml(text: str) -> Table:
    """Parse TOML text; raise TOMLDecodeError if it is none, another ValueError if it exceeds a limit."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"has {len(text):,} characters, expected at most {MAX_BYTES:,}; split it")
    if sum(line.count(".") ** 2 for line in text.split("\n")) > MAX_SQUARED_DOTS:
        advice = "write keys of fewer parts, and long lists on several lines"
        raise ValueError(f"has too many dots in a line; {advice}")
    too_deep = f"has tables or lists more than {MAX_DEPTH} levels deep; write it with fewer levels"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError(too_deep) from None
    except ValueError as error:  # a whole number of more than 4,300 digits
        raise ValueError(f"has a number that cannot be read ({error})") from None
    level: list[Table | list[Any]] = [table]
    for _ in range(MAX_DEPTH):
        values = [value for group in level for value in _values(group)]
        if any(isinstance(value, int) and not MIN_INT <= value <= MAX_INT for value in values):
            raise ValueError(f"has a whole number outside {MIN_INT} to {MAX_INT}; write a smaller one")
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return table
    raise ValueError(too_deep)


def read_limited(file: Traversable, max_bytes: int) -> bytes:
    """Read a file; raise ValueError if it is none, or has more than `max_bytes`."""
    if not file.is_file():
        raise ValueError("there is no such file, or it is a folder, a pipe or a device")
    content = bytearray()
    with file.open("rb") as stream:
        # One large read would allocate `max_bytes`, however small the file is.
        while chunk := stream.read(CHUNK_BYTES):
            content += chunk
            if len(content) > max_bytes:
                limit = f"{max_bytes:,} bytes, the most that is read"
                raise ValueError(f"it has more than {limit}; name another file")
    return bytes(content)


def is_file(file: Traversable) -> bool:
    """Whether a path leads to a file; False for a path that is too long for the system."""
    try:
        return file.is_file()
    except OSError:
        return False


def _values(group: Table | list[Any]) -> Iterable[Any]:
    return cast(Iterable[Any], group.values() if isinstance(group, dict) else group)
