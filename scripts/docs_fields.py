"""An extension of griffe, which mkdocs.yml names: the API reference shows the fields of values as arguments.

Classes with `@frozen_config` are dataclasses, which griffe cannot see without running the code.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

griffe: Any = import_module("griffe")  # the checks of types run without it, too
DECORATOR = "frozen_config"


class FrozenConfigs(griffe.Extension):  # pyright: ignore[reportUntypedBaseClass]
    """Shows `@frozen_config` to griffe as `@dataclass(kw_only=True)`."""

    def on_class_instance(self, *, cls: Any, **_: Any) -> None:
        """Replace the decorator of a class when it is read; griffe looks for dataclasses later."""
        for decorator in cls.decorators:
            if str(decorator.value) == DECORATOR:
                name = griffe.ExprName("dataclass", parent="dataclasses")
                keyword = griffe.ExprKeyword("kw_only", "True", function=name)
                decorator.value = griffe.ExprCall(name, [keyword])
