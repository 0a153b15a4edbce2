"""Texts of users in error messages: they are shortened, because they may be megabytes long."""

from __future__ import annotations

MAX_SHOWN = 200
"""Characters of a value that an error shows."""
MAX_LINE = 2000
"""Characters of a line of an error, which may list all names that are known."""


def shorten(text: str, limit: int = MAX_SHOWN) -> str:
    """Replace the middle of a text that is longer than `limit` by the number of characters left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} more characters) ... {text[-half:]}"


def quote(raw: object) -> str:
    """Return the `repr` of a value, shortened."""
    try:
        return shorten(repr(raw))
    except (ValueError, RecursionError):  # Python does not print numbers of more than 4,300 digits
        return f"a value of type {type(raw).__name__} that is too large to print"
