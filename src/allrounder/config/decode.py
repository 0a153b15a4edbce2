"""From TOML tables to values, and errors that say what, where, got, expected, and what to do."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast, get_args

from pydantic import ValidationError

from allrounder.config.fields import KINDS, Kind, adapter, definition, nearest
from allrounder.errors import RecipeError

T = TypeVar("T")
Table = dict[str, Any]

EXTENDS = "extends"
"""The key with which a recipe file names the one it is laid over."""
EXPECTED = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected a text",
    "string_pattern_mismatch": "expected a text of the form {pattern}",
    "tuple_type": "expected a list",
    "dict_type": "expected a table",
    "dataclass_type": "expected a table",
    "too_short": "expected a list of at least {min_length}",
    "too_long": "expected a list of at most {max_length}",
}
"""The checker's complaints in the words of a recipe's author."""
OURS = ("value_error", "kind", "between")
"""Complaints that this package words itself, with what it got."""


def decode(cls: type[T], raw: Table, source: str) -> T:
    """Read a whole table as a value; every mistake in it is reported at once."""
    try:
        return adapter(cls).validate_python(raw)
    except ValidationError as error:
        lines = [_sentence(cls, raw, cast(Mapping[str, Any], item)) for item in error.errors()]
        raise RecipeError("\n".join([f"{source} cannot be run:", *(f"  {line}" for line in lines)])) from None


def override(raw: Table, text: str) -> None:
    """Apply one `a.b.c=value` to a raw table; members of a list are addressed by name or number."""
    path, sign, written = text.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise RecipeError(f'--set {text}: expected a.b=value, such as "task.linf.objective.attack.steps=20"')
    place: Any = raw
    for key in keys[:-1]:
        place = _enter(place, key, text)
    if isinstance(place, list):
        remedy = "name a key of one of its members, or replace it whole"
        raise RecipeError(f"--set {text}: {'.'.join(keys[:-1])} is a list; {remedy}")
    if not isinstance(place, dict):
        raise RecipeError(f"--set {text}: {'.'.join(keys[:-1])} is no table, so it has no {keys[-1]}")
    place[keys[-1]] = _toml(written.strip(), text)


def merge(base: Table, child: Table) -> Table:
    """A recipe laid over the one it extends: tables of one kind merge, everything else replaces."""
    merged = dict(base)
    for key, new in child.items():
        old = merged.get(key)
        merged[key] = merge(old, new) if _is_table(old) and _is_table(new) and _same_kind(old, new) else new
    return merged


def json_schema(cls: type[Any]) -> Table:
    """The JSON Schema of the files that hold a value, for editors."""
    schema = adapter(cls).json_schema()
    definitions: Table = schema.setdefault("$defs", {})
    for kind in _kinds(cls, set()):
        for name, member in kind.table().items():
            entry = adapter(member).json_schema()
            definitions.update(entry.pop("$defs", {}))
            entry["properties"] = {"kind": {"const": name}, **entry.get("properties", {})}
            entry["required"] = ["kind", *entry.get("required", [])]
            definitions[definition(name, member)] = entry
    extends = {"type": "string", "description": "A file beside this one that this one is laid over."}
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    schema["anyOf"] = [{"required": [EXTENDS]}, {"required": schema.pop("required", [])}]
    return cast(Table, _resolve(schema))


def _is_table(raw: Any) -> TypeGuard[Table]:
    return isinstance(raw, dict)


def _same_kind(old: Table, new: Table) -> bool:
    return new.get("kind", old.get("kind")) == old.get("kind")


def _resolve(node: Any) -> Any:
    """Replace the markers that `Kind` left in a schema by references."""
    if isinstance(node, list):
        return [_resolve(item) for item in cast(list[Any], node)]
    if not _is_table(node):
        return node
    if KINDS not in node:
        return {key: _resolve(item) for key, item in node.items() if key != "default"}
    choices = [{"$ref": f"#/$defs/{name}"} for name in node[KINDS]]
    rest = {key: item for key, item in node.items() if key in ("description", "title")}
    return {**rest, "anyOf": choices + node["others"]}


def _kinds(cls: type[Any], seen: set[type[Any]]) -> list[Kind]:
    """Every table that a value class refers to, also through the classes of those tables."""
    found: list[Kind] = []
    if cls in seen:
        return found
    seen.add(cls)
    for part in [part for name in _names(cls) for part in _parts(cls, name)]:
        if isinstance(part, Kind):
            found.append(part)
            found += [k for member in part.table().values() for k in _kinds(member, seen)]
        elif isinstance(part, type):
            found += _kinds(part, seen)
    return found


def _names(cls: type[Any] | None) -> list[str]:
    """The fields of a value class."""
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def _parts(cls: type[Any] | None, name: str) -> list[Any]:
    """The type of a field, what is nested in it, and what it is annotated with."""
    field = getattr(cls, "__pydantic_fields__", {}).get(name)
    found: list[Any] = [] if field is None else [field.annotation, *field.metadata]
    for part in found:
        found += get_args(part)
    return found


def _enter(place: Any, key: str, text: str) -> Any:
    if isinstance(place, list):
        members = cast(list[Any], place)
        named = {str(member["name"]): member for member in members if _is_table(member) and "name" in member}
        if key in named:
            return named[key]
        if key.isdigit() and int(key) < len(members):
            return members[int(key)]
        known = ", ".join(named or map(str, range(len(members)))) or "none"
        raise RecipeError(f'--set {text}: no member "{key}" (there are: {known}){nearest(key, list(named))}')
    if _is_table(place):
        return place.setdefault(key, {})
    raise RecipeError(f"--set {text}: {key} lies below something that is no table")


def _toml(written: str, text: str) -> Any:
    """A TOML value; a bare word or fraction is read as text."""
    try:
        found = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError as error:
        if written.startswith(('"', "'", "[", "{")):
            raise RecipeError(f"--set {text}: not a TOML value: {error}") from None
        return written
    if len(found) > 1:
        raise RecipeError(f"--set {text}: several lines; give every override a --set of its own")
    return found["value"]


def _sentence(cls: type[Any], raw: Table, error: Mapping[str, Any]) -> str:
    location = cast(Sequence[str | int], error["loc"])
    path, what, message = _path(raw, location), error["type"], str(error["msg"])
    if what == "unexpected_keyword_argument":
        owner = _owner(cls, raw, location)
        names = _names(owner)
        has = f" ({owner.__name__} has: {', '.join(names) or 'no keys'})" if owner else ""
        said = f"unknown key{has}{nearest(str(location[-1]), names)}"
    elif what == "missing":
        said = "missing; it must be given"
    elif what in OURS:
        said = message.removeprefix("Value error, ")
    elif what in EXPECTED:
        said = EXPECTED[what].format(**error.get("ctx", {})) + _got(error["input"])
    else:
        said = message.replace("Input should be", "expected") + _got(error["input"])
    return f"{path}: {said}" if path else said


def _got(raw: object) -> str:
    match raw:
        case str() | int() | float():
            return f", got {raw!r}"
        case list():
            return f", got a list of {len(cast(list[Any], raw))}"
        case dict():
            return ", got a table"
        case _:
            return ""


def _step(place: Any, part: str | int) -> Any:
    """One step into raw data; nothing where it ends."""
    try:
        return place[part]
    except (KeyError, IndexError, TypeError):
        return None


def _path(raw: Any, location: Sequence[str | int]) -> str:
    """Dotted, with list members called by their name where they have one."""
    words: list[str] = []
    place = raw
    for part in location:
        place = _step(place, part)
        name = place.get("name") if _is_table(place) and isinstance(part, int) else None
        words.append(str(name) if isinstance(name, str) else str(part))
    return ".".join(words)


def _owner(cls: type[Any] | None, raw: Any, location: Sequence[str | int]) -> type[Any] | None:
    """The value class that the table holding the last part of a location is read as."""
    owner, parts, place = cls, list[Any](), raw
    for part in location[:-1]:
        place = _step(place, part)
        parts = _parts(owner, part) if isinstance(part, str) else parts
        owner = _reader(parts, place) if _is_table(place) else owner
    return owner


def _reader(parts: list[Any], table: Table) -> type[Any] | None:
    """The value class that a table is read as, in a field of such a type."""
    kind = next((part for part in parts if isinstance(part, Kind)), None)
    if kind is not None:
        return kind.table().get(str(table.get("kind")))
    return next((part for part in parts if isinstance(part, type) and _names(part)), None)
