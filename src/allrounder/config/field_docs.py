"""Docstrings of the fields of value classes, for the JSON Schema of recipes.

pydantic could collect them, but it would read and parse the source of every class whenever it is imported,
which takes a third of the time of importing this package.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import is_dataclass
from typing import Any

from pydantic.fields import FieldInfo

from allrounder.config.toml import Table


def add_field_docs(entry: Table, cls: type[Any]) -> None:
    """Add the docstrings of the fields of a class to those properties of its schema without a description."""
    docs = field_docs(cls)
    fields: dict[str, FieldInfo] = getattr(cls, "__pydantic_fields__", {})
    properties: dict[str, Table] = entry.get("properties", {})
    for name in fields.keys() & docs.keys():
        if (key := fields[name].alias or name) in properties:
            # In the order of pydantic, which sorts the keys.
            properties[key] = dict(sorted({"description": docs[name], **properties[key]}.items()))


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstrings of the fields of a class, its own and the inherited ones, by the names of the fields."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type[Any]) -> dict[str, str]:
    """The texts directly below the fields in the body of a class."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        text = below.value if isinstance(below, ast.Expr) else None
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Constant)
            and isinstance(text.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(text.value)
    return docs
