"""Networks that users pass from Python: a network, or a function or class that builds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias, cast

from torch import nn

from allrounder.errors import InputError

ModelFactory: TypeAlias = Callable[[], nn.Module]
"""Builds the network that replaces the recipe's."""
ModelLike: TypeAlias = nn.Module | ModelFactory
"""A network, or a function or class without arguments that builds one."""
EXPECTED = "a network, or a function or class without arguments that builds one"


def as_factory(model: ModelLike | None) -> ModelFactory | None:
    """Return a function that builds a new network each time: by calling `model`, or by copying it if it is a
    network. Raises InputError for anything else."""
    if model is None:
        return None
    if isinstance(model, nn.Module):
        return lambda: deepcopy(model)
    if not callable(model):
        hint = (
            "name networks of this package in the recipe" if isinstance(model, str) else "pass Net() or Net"
        )
        raise InputError(f"model: got a {type(model).__name__}, expected {EXPECTED}; {hint}")
    if problem := missing_arguments(model):
        name = getattr(model, "__name__", type(model).__name__)
        raise InputError(f"model: {name} needs arguments ({problem}), expected {EXPECTED}; pass {name}(...)")
    factory = cast(Callable[[], object], model)

    def build() -> nn.Module:
        network = factory()
        if not isinstance(network, nn.Module):
            got = type(network).__name__
            raise InputError(f"model: the function returned a {got}, expected a torch.nn.Module; return it")
        return network

    return build


def missing_arguments(factory: Callable[..., Any]) -> str | None:
    """Return why a function or class cannot be called without arguments; None if it can."""
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # Some callables have no signature.
    return None
