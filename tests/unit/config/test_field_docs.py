"""Docstrings of fields in the schema of a value class."""

from __future__ import annotations

from pydantic import Field

from allrounder.config.decode import json_schema
from allrounder.config.field_docs import field_docs
from allrounder.config.fields import NonNegativeFloat, PositiveInt, frozen_config


@frozen_config
class Base:
    size: PositiveInt = 1
    """How large
    it is."""
    plain: PositiveInt = 2


@frozen_config
class Derived(Base):
    """Not the docstring of a field."""

    rate: NonNegativeFloat = Field(default=0.1, alias="lr")
    """How fast it is."""


def test_fields_have_the_texts_below_them_also_inherited_ones():
    assert field_docs(Derived) == {"size": "How large\nit is.", "rate": "How fast it is."}


def test_the_schema_has_the_texts_under_the_keys_of_toml():
    properties = json_schema(Derived)["properties"]
    assert properties["lr"]["description"] == "How fast it is."
    assert properties["size"]["description"] == "How large\nit is."
    assert "description" not in properties["plain"]
