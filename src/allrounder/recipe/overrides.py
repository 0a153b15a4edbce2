"""Apply `--set` overrides to a recipe: those that change a kind, and all others.

Overrides may reach every default value, so they are applied to the resolved recipe. If an override changes
the kind of a table, the defaults of the old kind must not stay, because the new kind may have a field of the
same name: the table is then the one that the recipe files write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

from allrounder.config.decode import Table, apply_override, is_table

KIND = ".kind"
WORD = re.compile("[A-Za-z][A-Za-z0-9_-]*")


def apply_overrides(resolved: Table, written: Table, overrides: Sequence[str]) -> None:
    """Apply `a.b=c` texts to a resolved recipe; `written` is what the recipe files write.

    `model=resnet18` means `model.kind=resnet18`. Overrides of kinds come first, the outermost before others,
    so that the order of the texts does not matter.
    """
    texts = [_spell_out_kind(resolved, text) for text in overrides]
    kinds = [text for text in texts if _path(text).endswith(KIND)]
    for text in sorted(kinds, key=lambda text: _path(text).count(".")):
        path = _path(text).removesuffix(KIND)
        target, source = _find(resolved, path), _find(written, path)
        if is_table(target):
            target.clear()
            target.update(deepcopy(source) if is_table(source) else {})
        apply_override(resolved, text)
    for text in texts:
        if text not in kinds:
            apply_override(resolved, text)


def overrides_field(overrides: Sequence[str], path: str) -> bool:
    """Whether an override sets the field at a path, or a table that contains it."""
    return any(f"{path}.".startswith(f"{_path(text)}.") for text in overrides)


def _spell_out_kind(resolved: Table, text: str) -> str:
    """Return `a.kind=b` for `a=b` if a is a table with a kind and b is one word."""
    target, word = _find(resolved, _path(text)), WORD.fullmatch(text.partition("=")[2].strip())
    if word is None or word[0] in ("true", "false") or not is_table(target) or "kind" not in target:
        return text
    return f"{_path(text)}{KIND}={word[0]}"


def _path(text: str) -> str:
    return text.partition("=")[0].strip()


def _find(table: Table, path: str) -> Any:
    """Return the value at a path, where members of a list are called by name or number; None if absent."""
    value: Any = table
    for key in path.split("."):
        if isinstance(value, list):
            members = dict(enumerate(cast(list[Any], value)))
            named = [member for member in members.values() if is_table(member) and member.get("name") == key]
            value = named[0] if named else members.get(int(key) if key.isdigit() else -1)
        else:
            value = value.get(key) if is_table(value) else None
    return value
