"""Apply `--set` overrides to a resolved recipe.

A table of another kind replaces a table, as it does between files: no field of the old kind stays, because a
field of the same name may mean something else, and most of them are defaults that nobody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from allrounder.config.decode import Table, apply_override, is_table, parse_index

KIND = ".kind"
WORD = re.compile("[A-Za-z][A-Za-z0-9_-]*")


def apply_overrides(raw: Table, overrides: Sequence[str]) -> None:
    """Apply `a.b=c` texts to a resolved recipe; `model=resnet18` means `model.kind=resnet18`.

    Overrides of kinds come first, the outermost before others, so that the order of the texts does not
    matter.
    """
    texts = [_spell_out_kind(raw, text) for text in overrides]
    kinds = [text for text in texts if _path(text).endswith(KIND)]
    for text in sorted(kinds, key=lambda text: _path(text).count(".")):
        table = _find(raw, _path(text).removesuffix(KIND))
        if is_table(table) and table.get("kind") != _value(text):
            table.clear()
        apply_override(raw, text)
    for text in texts:
        if text not in kinds:
            apply_override(raw, text)


def overrides_field(overrides: Sequence[str], path: str) -> bool:
    """Whether an override sets the field at a path, or a table that contains it."""
    return any(f"{path}.".startswith(f"{_path(text)}.") for text in overrides)


def _spell_out_kind(raw: Table, text: str) -> str:
    """Return `a.kind=b` for `a=b` if a is a table with a kind and b is one word."""
    table, value = _find(raw, _path(text)), _value(text)
    is_word = WORD.fullmatch(value) is not None and value not in ("true", "false", "nan", "inf")
    return f"{_path(text)}{KIND}={value}" if is_word and is_table(table) and "kind" in table else text


def _path(text: str) -> str:
    return text.partition("=")[0].strip()


def _value(text: str) -> str:
    """Return the value of an override, without the quotes of a text."""
    return text.partition("=")[2].strip().strip("\"'")


def _find(raw: Table, path: str) -> Any:
    """Return the value at a path, where members of a list are called by name or number; None if absent."""
    value: Any = raw
    for key in path.split("."):
        if isinstance(value, list):
            members: dict[int | None, Any] = dict(enumerate(cast(list[Any], value)))
            named = [member for member in members.values() if is_table(member) and member.get("name") == key]
            value = named[0] if named else members.get(parse_index(key))
        else:
            value = value.get(key) if is_table(value) else None
    return value
