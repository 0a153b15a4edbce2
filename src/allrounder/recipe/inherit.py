"""Inheritance between recipe files: `extends`, and how one table is laid over another.

`extends` names one parent or a list of parents: files beside the recipe, or shipped recipes. Later parents
lie over earlier ones, and the file itself over all. A file that is reached twice counts once, where it is
first reached. Tables of the same kind merge key by key; the bare name of a kind is short for a table with
this kind. Lists of members with a name, such as [[task]], merge by name:

- a member with a known `name` is laid over the inherited one, and a new name is appended;
- a member with `names`, a list, is laid over the inherited members of these names and appends nothing;
- a member with `drop = true` removes the inherited one.

Everything else replaces, and `key = { drop = true }` removes an inherited key. The `name` and `about` of a
recipe are not inherited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

from allrounder.config.decode import DROP, EXTENDS, NAMES, is_table, parse_index
from allrounder.config.text import MAX_LINE, quote, shorten
from allrounder.config.toml import Table
from allrounder.errors import RecipeError
from allrounder.recipe.library import FileKey, RecipeFile, find_recipe

NOT_INHERITED = ("name", "about")
MAX_FILES = 32
"""Files that a recipe may be made of."""
MAX_MEMBERS = 1000
"""Members of a list that is merged by name, such as [[task]]; every member is compared with every other."""


@dataclass(frozen=True)
class Layer:
    """What one file contributes to a recipe."""

    label: str
    table: Table


@dataclass(frozen=True)
class Chain:
    """A recipe and everything that it extends, each file once; later layers lie over earlier ones."""

    layers: tuple[Layer, ...]

    @classmethod
    def read(cls, source: str | Path) -> Chain:
        """Read a recipe, given its name or path, and everything that it extends."""
        layers: dict[FileKey, Layer] = {}
        _collect(find_recipe(source), layers, ())
        return cls(tuple(layers.values()))

    def merge(self) -> Table:
        """Lay all layers over each other."""
        merged: Table = {}
        for layer in self.layers:
            inherited = {key: value for key, value in merged.items() if key not in NOT_INHERITED}
            merged = merge(inherited, layer.table, f"{layer.label}: ")
        return merged

    def origin(self, path: Sequence[str]) -> str | None:
        """Return the label of the file that sets a field; None if none does, or if there is only one file."""
        layers = self.layers if len(self.layers) > 1 else ()
        return next((layer.label for layer in reversed(layers) if _contains(layer.table, path)), None)

    def inherited_from(self, path: Sequence[str]) -> str | None:
        """Return the label of the file that a field is inherited from; None if the recipe itself sets it."""
        origin = self.origin(path)
        return None if origin == self.layers[-1].label else origin

    def largest_epochs(self) -> int:
        """Return the largest number of epochs that any of the files sets; 0 if none does."""
        numbers = [layer.table.get("epochs") for layer in self.layers]
        return max((number for number in numbers if isinstance(number, int)), default=0)


def merge(base: Table, child: Table, place: str = "") -> Table:
    """Lay a table over another one; `place` starts the path in errors."""
    merged = dict(base)
    for key, new in child.items():
        old = merged.get(key)
        if new == {DROP: True}:
            if key not in merged:
                raise RecipeError(f"{shorten(place + key)}: drop: no such key is inherited")
            del merged[key]
            continue
        if isinstance(new, str) and is_table(old) and "kind" in old:
            new = {"kind": new}
        if isinstance(old, str) and is_table(new):
            old = {"kind": old}
        if is_table(new):
            same_kind = is_table(old) and new.get("kind", old.get("kind")) == old.get("kind")
            merged[key] = merge(cast(Table, old) if same_kind else {}, new, f"{place}{key}.")
        elif _has_names(new):
            members = cast(list[Any], old) if isinstance(old, list) else []
            merged[key] = _merge_members(members, new, f"{place}{key}")
        else:
            merged[key] = new
    return merged


def _collect(file: RecipeFile, layers: dict[FileKey, Layer], children: tuple[RecipeFile, ...]) -> None:
    """Add a file to the layers, after everything that it extends."""
    chain = (*children, file)
    if file.key in (child.key for child in children):
        path = shorten(" -> ".join(child.label for child in chain), MAX_LINE)
        raise RecipeError(f"{shorten(file.label)} extends itself: {path}")
    if file.key in layers:
        return
    if max(len(chain), len(layers) + 1) > MAX_FILES:
        advice = "put what they set into fewer files"
        raise RecipeError(f"{shorten(chain[0].label)}: extends more than {MAX_FILES - 1} files; {advice}")
    table = file.read()
    for parent in _parents(table.pop(EXTENDS, []), file):
        _collect(file.find_parent(parent), layers, chain)
    layers[file.key] = Layer(file.label, table)


def _parents(value: object, file: RecipeFile) -> list[str]:
    names = cast(list[object], value if isinstance(value, list) else [value])
    for name in names:
        if not isinstance(name, str):
            expected = "expected the name of a file or of a shipped recipe, or a list of names"
            raise RecipeError(f"{file.label}: {EXTENDS}: {expected}, got {quote(name)}")
    return cast(list[str], names)


def _merge_members(old: list[Any], entries: list[Table], place: str) -> list[Any]:
    """Lay members of a list over those of the same name.

    A second member of one name is appended, so that decoding reports it.
    """
    if len(old) + len(entries) > MAX_MEMBERS:
        got = f"got {len(old) + len(entries):,} members, the inherited ones included"
        raise RecipeError(f"{place}: {got}, expected at most {MAX_MEMBERS:,}; remove some")
    members = list(old)
    taken: list[Any] = []
    for entry in entries:
        names = _names(entry, place)
        where = f"{place}.{shorten(', '.join(map(str, names)))}"
        fields = {key: value for key, value in entry.items() if key not in (NAMES, DROP)}
        matches = [i for i, member in enumerate(members) if _name(member) in names]
        if DROP in entry:
            _check_drop(entry, names, members, where)
            members = [member for member in members if _name(member) not in names]
        elif NAMES in entry:
            for i in matches:
                members[i] = merge(members[i], fields, f"{where}.")
        elif matches and names[0] not in taken:
            members[matches[0]] = merge(members[matches[0]], fields, f"{where}.")
            taken += names
        else:
            members.append(merge({}, fields, f"{where}."))
            taken += names
    return members


def _names(entry: Table, place: str) -> list[Any]:
    """Return the names of the members that an entry is laid over; none if it has none."""
    if NAMES not in entry:
        return [entry["name"]] if "name" in entry else []
    names = entry[NAMES]
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in cast(list[Any], names))
    if not is_list or "name" in entry:
        raise RecipeError(f"{place}.names: expected a list of names, and no `name` beside it")
    return cast(list[Any], names)


def _check_drop(entry: Table, names: list[Any], members: list[Any], where: str) -> None:
    if entry[DROP] is not True or set(entry) not in ({"name", DROP}, {NAMES, DROP}):
        raise RecipeError(f"{where}: drop: expected `drop = true` and a name, and nothing else")
    inherited = [_name(member) for member in members]
    for name in names:
        if name not in inherited:
            others = shorten(", ".join(map(str, inherited)), MAX_LINE) or "none"
            problem = f"nothing inherited is called {shorten(str(name))}"
            raise RecipeError(f"{where}: drop: {problem} (there are: {others})")


def _name(member: Any) -> Any:
    return member.get("name") if is_table(member) else None


def _has_names(value: Any) -> TypeGuard[list[Table]]:
    """Whether a value is a list of tables of which some have names."""
    members = cast(list[Any], value) if isinstance(value, list) else []
    tables = [member for member in members if is_table(member)]
    return len(tables) == len(members) and any("name" in table or NAMES in table for table in tables)


def _contains(value: Any, path: Sequence[str]) -> bool:
    """Whether a raw table sets the field at a path; members of a list are called by name or number."""
    if not path:
        return True
    first, *rest = path
    if is_table(value):
        return first in value and _contains(value[first], rest)
    if not isinstance(value, list):
        return False
    members = cast(list[Any], value)
    tables = [member for member in members if is_table(member)]
    matches = [table for table in tables if first in _listed_names(table)]
    index = parse_index(first)
    if not matches and index is not None:
        matches = members[index : index + 1]
    return any(_contains(member, rest) for member in matches)


def _listed_names(member: Table) -> list[Any]:
    names = member.get(NAMES)
    return [member.get("name"), *(cast(list[Any], names) if isinstance(names, list) else ())]
