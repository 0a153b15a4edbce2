"""Checks of the shapes and types of tensors at run time, for the tests.

jaxtyping's import hook wraps every function, which takes most of the time of tests of recipes. Only
functions and dataclasses that annotate a shape need it; pyright checks the types of the others.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from typing import Any, get_args

import jaxtyping
from jaxtyping import AbstractArray, install_import_hook


def install_shape_checks() -> None:
    """Check the functions and dataclasses of the package that annotate shapes; call it before the import."""
    wrap: Any = jaxtyping.jaxtyped

    def wrap_if_shaped(item: Any = None, **options: Any) -> Any:
        if item is None:
            return partial(wrap_if_shaped, **options)
        return wrap(item, **options) if _has_shapes(item) else item

    jaxtyping.jaxtyped = wrap_if_shaped  # what the hook inserts as a decorator
    install_import_hook("allrounder", "beartype.beartype")


def _has_shapes(item: Any) -> bool:
    names = vars(sys.modules[item.__module__])
    return any(_is_shaped(_resolve(hint, names)) for hint in inspect.get_annotations(item).values())


def _resolve(hint: Any, names: dict[str, Any]) -> Any:
    try:
        return eval(hint, names) if isinstance(hint, str) else hint
    except (NameError, AttributeError, TypeError, SyntaxError):  # defined later, or for type checkers only
        return None


def _is_shaped(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(_is_shaped(part) for part in get_args(hint))
