"""Checks of the fields of stored files, without pydantic.

A digest finds damage, but a person who changes a field can write a new digest. Readers therefore check the
fields that they rely on, so that a wrong one is an error about the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

from allrounder.config.text import quote

MISSING = object()


@final
@dataclass(frozen=True)
class Check:
    """What a field must be, in words and as a test."""

    words: str
    test: Callable[[object], bool]


Checks: TypeAlias = Mapping[str, Check]


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


TEXT = Check("a text", lambda value: isinstance(value, str))
NUMBER = Check("a number", _is_number)
TABLE = Check("a table", lambda value: isinstance(value, dict))


def whole_number(low: int, high: int = 2**53) -> Check:
    """A whole number from `low` to `high`."""
    return Check(
        f"a whole number from {low} to {high}",
        lambda value: type(value) is int and low <= value <= high,
    )


def number(low: float, high: float) -> Check:
    """A number from `low` to `high`."""
    words = f"a number from {low:g} to {high:g}"
    return Check(words, lambda value: _is_number(value) and low <= cast(float, value) <= high)


def list_of(check: Check, low: int = 0, high: int = 2**53) -> Check:
    """A list of `low` to `high` entries."""

    def test(value: object) -> bool:
        return (
            isinstance(value, list)
            and low <= len(cast(Sequence[Any], value)) <= high
            and all(map(check.test, cast(Sequence[Any], value)))
        )

    return Check(f"a list of which each is {check.words}", test)


def table_of(check: Check) -> Check:
    """A table with any keys."""

    def test(value: object) -> bool:
        return isinstance(value, dict) and all(map(check.test, cast(dict[str, Any], value).values()))

    return Check(f"a table of which each is {check.words}", test)


def fields_of(checks: Checks) -> Check:
    """A table with these fields."""

    def test(value: object) -> bool:
        table = cast(dict[str, Any], value)
        return isinstance(value, dict) and all(c.test(table.get(k, MISSING)) for k, c in checks.items())

    return Check(f"a table with {', '.join(checks)}", test)


def optional(check: Check) -> Check:
    """A field that may be missing."""
    return Check(f"{check.words}, or nothing", lambda value: value is MISSING or check.test(value))


def nullable(check: Check) -> Check:
    """A field that may be null."""
    return Check(f"{check.words}, or null", lambda value: value is None or check.test(value))


def check_fields(fields: Mapping[str, Any], checks: Checks) -> None:
    """Raise ValueError unless fields are as expected; other fields may be there too."""
    for name, check in checks.items():
        value = fields.get(name, MISSING)
        if not check.test(value):
            got = "nothing" if value is MISSING else quote(value)
            raise ValueError(f"{name}: got {got}, expected {check.words}")
