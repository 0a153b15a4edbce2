"""Decode TOML tables into values, with errors that say what is wrong, where, what was expected, and what to
do."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from allrounder.config.field_docs import add_field_docs
from allrounder.config.fields import KINDS_KEY, OneOf, adapter, definition_name, did_you_mean
from allrounder.config.text import MAX_LINE, quote, shorten
from allrounder.config.toml import MAX_DEPTH, Table, load_toml
from allrounder.errors import RecipeError

T = TypeVar("T")
Origin = Callable[[Sequence[str]], str | None]
"""Returns the file that sets the field at a path, for tables that are merged from several files."""

EXTENDS = "extends"
"""The key of a recipe file that names its parents."""
NAMES = "names"
"""The key of a member of a list that lays it over all inherited members of these names."""
DROP = "drop"
"""The key of a member of a list that removes the inherited member of this name."""
_TEXTS = {"type": "array", "items": {"type": "string"}}
EXTENDS_SCHEMA = {
    "anyOf": [{"type": "string"}, _TEXTS],
    "description": "What this file is laid over: a file beside it or a shipped recipe, or a list of them.",
}
NAMES_SCHEMA = {
    **_TEXTS,
    "description": "Instead of `name`: lays this over all inherited members of these names.",
}
DROP_SCHEMA = {"const": True, "description": "Removes the inherited member of this name."}
MESSAGES = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected a text",
    "string_pattern_mismatch": "expected a text of the form {pattern}",
    "string_too_short": "expected a text of at least {min_length} characters",
    "string_too_long": "expected a text of at most {max_length} characters",
    "tuple_type": "expected a list",
    "dict_type": "expected a table",
    "dataclass_type": "expected a table",
    "too_short": "expected a list of at least {min_length}",
    "too_long": "expected a list of at most {max_length}",
}
"""pydantic's error types in the words of TOML."""
MAX_MISTAKES = 20
"""Mistakes that an error lists; others are only counted."""
MAX_INDEX_DIGITS = 9
"""Digits of the number of a member of a list."""
OWN_ERROR_TYPES = ("value_error", "kind", "cross_field")
"""Errors whose messages come from this package and already include what was given."""


def decode(cls: type[T], raw: Table, source: str, origin: Origin | None = None) -> T:
    """Decode a whole table to a value; raise one RecipeError that lists all its mistakes."""
    try:
        return adapter(cls).validate_python(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes = error.errors()
        items = [cast(Mapping[str, Any], item) for item in mistakes[:MAX_MISTAKES]]
        lines = [shorten(_format_error(cls, raw, item, origin), MAX_LINE) for item in items]
        if len(mistakes) > MAX_MISTAKES:
            lines.append(f"... and {len(mistakes) - MAX_MISTAKES:,} more mistakes")
        raise RecipeError("\n".join([f"{source} cannot be run:", *(f"  {line}" for line in lines)])) from None


def apply_override(raw: Table, text: str) -> None:
    """Apply one `a.b.c=value` to a raw table; members of a list are addressed by name or number."""
    path, sign, value = text.partition("=")
    keys = path.strip().split(".")
    place = f"override {shorten(text)}"
    if not sign or not all(keys):
        raise RecipeError(f'{place}: expected a.b=value, such as "task.linf.objective.attack.steps=20"')
    if len(keys) > MAX_DEPTH:
        raise RecipeError(f"{place}: got {len(keys):,} keys, expected at most {MAX_DEPTH}")
    target: Any = raw
    for key in keys[:-1]:
        target = _child(target, key, place)
    parent = shorten(".".join(keys[:-1]))
    if isinstance(target, list):
        advice = "name a key of one of its members, or replace the whole list"
        raise RecipeError(f"{place}: {parent} is a list; {advice}")
    if not isinstance(target, dict):
        raise RecipeError(f"{place}: {parent} is not a table, so it has no {shorten(keys[-1])}")
    target[keys[-1]] = _parse_value(value.strip(), place)


def is_table(raw: Any) -> TypeGuard[Table]:
    """Whether a raw value is a table."""
    return isinstance(raw, dict)


def json_schema(cls: type[Any]) -> Table:
    """Return the JSON Schema of the files that hold a value, for editors.

    It checks keys, kinds and values. A file that extends nothing must have the required keys. Tables inside a
    file are not checked for theirs, because they may be laid over others.
    """
    schema = adapter(cls).json_schema(_Generator)
    definitions: Table = schema.setdefault("$defs", {})
    classes: set[type[Any]] = set()
    for one_of in _one_ofs(cls, classes):
        for name, member in one_of.table().items():
            entry = adapter(member).json_schema(_Generator)
            definitions.update(entry.pop("$defs", {}))
            entry["properties"] = {"kind": {"const": name}, **entry.get("properties", {})}
            definitions[definition_name(name, member)] = entry
    by_title = {member.__name__: member for member in classes if dataclasses.is_dataclass(member)}
    for entry in (schema, *definitions.values()):
        if (member := by_title.get(entry.get("title", ""))) is not None:
            add_field_docs(entry, member)
    for entry in definitions.values():
        entry.pop("required", None)
        if "name" in entry.get("properties", {}):
            entry["properties"] |= {NAMES: NAMES_SCHEMA, DROP: DROP_SCHEMA}
    schema["properties"] = {EXTENDS: EXTENDS_SCHEMA, **schema["properties"]}
    schema["anyOf"] = [{"required": [EXTENDS]}, {"required": schema.pop("required", [])}]
    return cast(Table, _resolve_kinds(schema))


class _Generator(GenerateJsonSchema):
    """Does not warn about defaults that JSON cannot hold: `_resolve_kinds` drops all defaults."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 (declared so by the library)
        "skipped-choice",
        "non-serializable-default",
    }


def _resolve_kinds(node: Any) -> Any:
    """Replace the lists of kinds that `OneOf` put into a schema by references."""
    if isinstance(node, list):
        return [_resolve_kinds(item) for item in cast(list[Any], node)]
    if not is_table(node):
        return node
    if KINDS_KEY not in node:
        return {key: _resolve_kinds(item) for key, item in node.items() if key != "default"}
    choices = [{"$ref": f"#/$defs/{name}"} for name in node[KINDS_KEY]]
    rest = {key: item for key, item in node.items() if key in ("description", "title")}
    return {**rest, "anyOf": choices + node["others"]}


def _one_ofs(cls: type[Any], seen: set[type[Any]]) -> Iterator[OneOf]:
    """Yield every `OneOf` in the fields of a value class, and in the fields of the classes it names."""
    if cls in seen:
        return
    seen.add(cls)
    for part in [part for field in _fields(cls).values() for part in _type_parts(field)]:
        if isinstance(part, OneOf):
            yield part
            for member in part.table().values():
                yield from _one_ofs(member, seen)
        elif isinstance(part, type):
            yield from _one_ofs(part, seen)


def _fields(cls: type[Any] | None) -> dict[str, FieldInfo]:
    """Return the fields of a value class by their TOML keys."""
    if not dataclasses.is_dataclass(cls):
        return {}
    fields: dict[str, FieldInfo] = getattr(cls, "__pydantic_fields__", {})
    return {field.alias or name: field for name, field in fields.items()}


def _type_parts(field: FieldInfo | None) -> list[Any]:
    """Return the type of a field, the types nested in it, and its annotations."""
    parts: list[Any] = [] if field is None else [field.annotation, *field.metadata]
    for part in parts:
        parts += get_args(part)
    return parts


def _child(target: Any, key: str, place: str) -> Any:
    """Return the table or list below a key; a missing table is created."""
    if isinstance(target, list):
        members = cast(list[Any], target)
        by_name = {str(member["name"]): member for member in members if is_table(member) and "name" in member}
        if key in by_name:
            return by_name[key]
        index = parse_index(key)
        if index is not None and index < len(members):
            return members[index]
        choices = shorten(", ".join(by_name or map(str, range(len(members)))), MAX_LINE) or "none"
        hint = did_you_mean(key, by_name)
        raise RecipeError(f'{place}: no member "{shorten(key)}" (there are: {choices}){hint}')
    if is_table(target):
        return target.setdefault(key, {})
    raise RecipeError(f"{place}: the parent of {shorten(key)} is not a table")


def parse_index(key: str) -> int | None:
    """Return the number of a member of a list that a key is; None if it is none."""
    return int(key) if key.isdecimal() and len(key) <= MAX_INDEX_DIGITS else None


def _parse_value(value: str, place: str) -> Any:
    """Parse a TOML value; a bare word or fraction is a text."""
    try:
        table = load_toml(f"value = {value}")
    except tomllib.TOMLDecodeError as error:
        if value.startswith(('"', "'", "[", "{")):
            raise RecipeError(f"{place}: not a TOML value: {shorten(str(error))}") from None
        return value
    except ValueError as error:
        raise RecipeError(f"{place}: {error}") from None
    if len(table) > 1:
        raise RecipeError(f"{place}: got several lines, expected one; give one value per override")
    return table["value"]


def _format_error(cls: type[Any], raw: Table, error: Mapping[str, Any], origin: Origin | None) -> str:
    location = cast(Sequence[str | int], error["loc"])
    words = [_path_word(key, value) for key, value in _walk(raw, location)]
    path = ".".join(words)
    kind = error["type"]
    if kind == "unexpected_keyword_argument":
        owner = _owner_class(cls, raw, location)
        keys = list(_fields(owner))
        has = f" ({owner.__name__} has: {', '.join(keys) or 'no keys'})" if owner else ""
        message = f"unknown key{has}{did_you_mean(str(location[-1]), keys)}"
    elif kind == "missing":
        message = "missing; it is required"
    elif kind in OWN_ERROR_TYPES:
        message = str(error["msg"]).removeprefix("Value error, ")
    elif kind in MESSAGES:
        message = MESSAGES[kind].format(**error.get("ctx", {})) + _format_got(error["input"])
    else:
        message = str(error["msg"]).replace("Input should be", "expected") + _format_got(error["input"])
    file = origin(words) if origin is not None and words else None
    message = message if file is None else f"{message} (in {file})"
    return f"{path}: {message}" if path else message


def _format_got(raw: object) -> str:
    match raw:
        case str() | int() | float():
            return f", got {quote(raw)}"
        case list():
            return f", got a list of {len(cast(list[Any], raw))}"
        case dict():
            return ", got a table"
        case _:
            return ""


def _walk(raw: Any, location: Sequence[str | int]) -> Iterator[tuple[str | int, Any]]:
    """Yield every key of a location with the raw value below it, None if there is none."""
    for key in location:
        try:
            raw = raw[key]
        except (KeyError, IndexError, TypeError):
            raw = None
        yield key, raw


def _path_word(key: str | int, value: Any) -> str:
    """Return a key as a word; members of a list are called by their name if they have one."""
    name = value.get("name") if is_table(value) and isinstance(key, int) else None
    return name if isinstance(name, str) else str(key)


def _owner_class(cls: type[Any], raw: Any, location: Sequence[str | int]) -> type[Any] | None:
    """Return the value class of the table that contains the last key of a location."""
    owner: type[Any] | None = cls
    parts: list[Any] = []
    for key, value in _walk(raw, location[:-1]):
        parts = _type_parts(_fields(owner).get(key)) if isinstance(key, str) else parts
        if is_table(value):
            one_of = next((part for part in parts if isinstance(part, OneOf)), None)
            classes = [part for part in parts if isinstance(part, type) and _fields(part)]
            owner = one_of.table().get(str(value.get("kind"))) if one_of else next(iter(classes), None)
    return owner
