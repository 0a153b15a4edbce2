"""Finds absolute paths in the files of a study or an export: they name folders of one machine and do not
belong into published files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from allrounder.config.toml import parse_toml
from allrounder.errors import RunError
from allrounder.report.outcome import Outcome

BEFORE = r"""'"`=(\[{,:;<>|"""
"""The signs after which a path may start."""
ABSOLUTE_PATH = re.compile(
    rf"""
    (?: (?: ^ | (?<=[{BEFORE}]) | (?<=[:=]\s) ) /[\w.-]    # /data
      | (?<=\s) /[\w.-]+/[\w.-]                            # after a word it needs two parts: not PGD /AT
      | (?: ^ | (?<=[\s{BEFORE}]) )
        (?: ~(?:[A-Za-z_][\w.-]*)?/[\w.-]                  # ~/data
          | [A-Za-z]:[\\/]\w                               # C:\data
          | \\\\[\w.-]+\\\w                                # \\server\data
          | file:/+[\w.-] ) )                              # file:///data
    [^\s'"`]*
    """,
    re.VERBOSE,
)
"""An absolute path in a text, but not the 8/255 of a threat or the address of a page."""
ADVICE = (
    "train with a path that is relative to the working folder, or with a dataset that is found by its name"
)


def check_no_machine_paths(file: Path) -> None:
    """Raise RunError if a file holds an absolute path; the error names the entry."""
    for place, text in _list_texts(_read_values(file)):
        if found := ABSOLUTE_PATH.search(text):
            problem = f"{place} holds {found[0]}, an absolute path of this machine"
            raise RunError(f"{file}: {problem}, expected none in published files; {ADVICE}")


def _read_values(file: Path) -> Any:
    """Return the content of a TOML, JSON or JSON lines file, the facts of an outcome, or the lines of a
    text."""
    if file.suffix == ".safetensors":
        return Outcome.load(file).facts
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".toml":
        return parse_toml(text, str(file))
    if file.suffix in (".md", ".py"):
        return {f"line {number}": line for number, line in enumerate(text.splitlines(), start=1)}
    if file.suffix == ".jsonl":
        return {f"line {number}": json.loads(line) for number, line in enumerate(text.splitlines(), start=1)}
    return json.loads(text)


def _list_texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a nested value, also keys, with its place, such as data.path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in cast(Mapping[str, Any], value).items():
            inner = f"{place}.{key}".lstrip(".")
            yield inner, key
            yield from _list_texts(item, inner)
    elif isinstance(value, Sequence):
        for item in cast(Sequence[Any], value):
            yield from _list_texts(item, place)
