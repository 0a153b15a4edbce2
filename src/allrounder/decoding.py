"""From TOML tables to values, and errors that say what, where, got, expected, and what to do."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast, get_args, get_type_hints

from pydantic import ValidationError

from allrounder.errors import RecipeError
from allrounder.values import KINDS, Kind, adapter, nearest

T = TypeVar("T")
Table = dict[str, Any]


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
        raise RecipeError(f"--set {text}: {'.'.join(keys[:-1])} is a list; name a key of one of its members")
    if not isinstance(place, dict):
        raise RecipeError(f"--set {text}: {'.'.join(keys[:-1])} is no table, so it has no {keys[-1]}")
    place[keys[-1]] = _toml(written.strip())


def merge(base: Table, child: Table) -> Table:
    """A recipe laid over the one it extends: tables of one kind merge, everything else replaces."""
    merged = dict(base)
    for key, new in child.items():
        old = merged.get(key)
        merged[key] = merge(old, new) if _is_table(old) and _is_table(new) and _same_kind(old, new) else new
    return merged


def json_schema(cls: type[Any]) -> Table:
    """The JSON Schema of a value's table, for editors."""
    schema = adapter(cls).json_schema()
    definitions: Table = schema.setdefault("$defs", {})
    for kind in _kinds(cls, set()):
        for name, member in kind.table().items():
            entry = adapter(member).json_schema()
            definitions.update(entry.pop("$defs", {}))
            entry["properties"] = {"kind": {"const": name}, **entry.get("properties", {})}
            entry["required"] = ["kind", *entry.get("required", [])]
            definitions[_definition(name, member.__name__)] = entry
    return cast(Table, _resolve(schema))


def _is_table(raw: Any) -> TypeGuard[Table]:
    return isinstance(raw, dict)


def _same_kind(old: Table, new: Table) -> bool:
    return new.get("kind", old.get("kind")) == old.get("kind")


def _definition(kind: str, name: str) -> str:
    return f"{name}.{kind}"


def _resolve(node: Any) -> Any:
    """Replace the markers that `Kind` left in a schema by references."""
    if isinstance(node, list):
        return [_resolve(item) for item in cast(list[Any], node)]
    if not _is_table(node):
        return node
    table = node
    if KINDS not in table:
        return {key: _resolve(item) for key, item in table.items() if key != "default"}
    choices: list[Table] = [
        {"$ref": f"#/$defs/{_definition(kind, name)}"} for kind, name in table[KINDS].items()
    ]
    choices += [{"type": "number"}] if table["number"] else []
    rest = {key: item for key, item in table.items() if key in ("description", "title")}
    return {**rest, "anyOf": choices}


def _kinds(cls: type[Any], seen: set[type[Any]]) -> list[Kind]:
    """Every table that a value class refers to, also through the classes of those tables."""
    found: list[Kind] = []
    if cls in seen or not dataclasses.is_dataclass(cls):
        return found
    seen.add(cls)
    for hint in get_type_hints(cls, include_extras=True).values():
        for part in _parts(hint):
            if isinstance(part, Kind):
                found.append(part)
                found += [k for member in part.table().values() for k in _kinds(member, seen)]
            elif isinstance(part, type):
                found += _kinds(part, seen)
    return found


def _parts(hint: Any) -> list[Any]:
    inner = [part for argument in get_args(hint) for part in _parts(argument)]
    return [hint, *inner] if not isinstance(hint, Kind) else [hint]


def _enter(place: Any, key: str, text: str) -> Any:
    if isinstance(place, list):
        members = cast(list[Any], place)
        named = {str(member.get("name")): member for member in members if _is_table(member)}
        if key in named:
            return named[key]
        if key.isdigit() and int(key) < len(members):
            return members[int(key)]
        known = ", ".join(named) or f"0 to {len(members) - 1}"
        raise RecipeError(f'--set {text}: no member "{key}" (there are: {known}){nearest(key, list(named))}')
    if _is_table(place):
        return place.setdefault(key, {})
    raise RecipeError(f"--set {text}: {key} lies below something that is no table")


def _toml(written: str) -> Any:
    """A TOML value; a bare word or fraction is read as text."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _sentence(cls: type[Any], raw: Table, error: Mapping[str, Any]) -> str:
    location = cast(Sequence[str | int], error["loc"])
    path = _path(raw, location)
    if error["type"] == "unexpected_keyword_argument":
        owner = _owner(cls, raw, location)
        fields = (
            [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
        )
        has = f" ({owner.__name__} has: {', '.join(fields) or 'no keys'})" if owner else ""
        return f"{path}: unknown key{has}{nearest(str(location[-1]), fields)}"
    if error["type"] == "missing":
        return f"{path}: missing; it must be given"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")
    got = error["input"]
    shown = f", got {got!r}" if isinstance(got, str | int | float) and "got" not in message else ""
    return f"{path}: {message}{shown}" if path else message


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


def _owner(cls: type[Any], raw: Any, location: Sequence[str | int]) -> type[Any] | None:
    """The value class that the table holding the last part of a location is read as."""
    owner: type[Any] | None = cls
    place = raw
    for part in location[:-1]:
        place = _step(place, part)
        if isinstance(part, int):
            continue
        hint = get_type_hints(owner, include_extras=True).get(part) if owner else None
        parts = _parts(hint)
        kind = next((item for item in parts if isinstance(item, Kind)), None)
        if kind is not None and _is_table(place):
            owner = kind.table().get(str(place.get("kind")))
        else:
            owner = next((item for item in parts if dataclasses.is_dataclass(item)), None)  # pyright: ignore[reportAssignmentType]
    return owner
