"""A short description of a value, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import final

MAX_LISTED = 10
"""Names that a list shows at most."""


@final
@dataclass(frozen=True)
class Summary:
    """A title, and rows of a name and a text."""

    title: str
    rows: Sequence[tuple[str, str]]

    def to_text(self) -> str:
        """The title and an indented line for each row."""
        width = max((len(name) for name, _ in self.rows), default=0)
        return "\n".join([self.title, *(f"  {name:<{width}}  {text}" for name, text in self.rows)])

    def to_html(self) -> str:
        """A table with the title above it; everything is escaped."""
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self.rows)
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"


class HasSummary(ABC):
    """A value that a terminal and a notebook show by its summary."""

    @abstractmethod
    def summary(self) -> Summary:
        """Describe the value in a few lines."""

    def __repr__(self) -> str:
        return self.summary().to_text()

    def _repr_html_(self) -> str:
        return self.summary().to_html()


def list_names(names: Sequence[str]) -> str:
    """List names, the first few if there are many."""
    return ", ".join([*names[:MAX_LISTED], *(["..."] if len(names) > MAX_LISTED else [])])


def format_shape(shape: Sequence[int]) -> str:
    """Format the shape of images, such as 3x32x32."""
    return "x".join(map(str, shape))
