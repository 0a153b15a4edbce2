"""Networks that users pass from Python: a network, or a function or class that builds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from allrounder.errors import InputError
from allrounder.models.logits_of import find_logits
from allrounder.nn.modes import preserve_mode
from allrounder.types import Images, device_and_dtype

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


def check_fits(network: nn.Module, x: Images, num_classes: int) -> None:
    """Raise InputError unless a network returns one logit per class for images; it is not changed."""
    device, dtype = device_and_dtype(network)
    try:
        with torch.no_grad(), preserve_mode(network):
            logits: object = network.eval()(x.to(device, dtype))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        shape = tuple(x.shape[1:])
        raise InputError(
            f"model: fails on images of shape {shape}: {reason}; change it to fit them"
        ) from error
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (len(x), num_classes):
        got = f"shape {shape}" if shape else f"a {type(logits).__name__}"
        expected = f"expected logits of shape {(len(x), num_classes)}, one for each class"
        fix = "change its last layer"
        if not isinstance(logits, Tensor) and find_logits(logits) is not None:
            fix = "wrap it: allrounder.LogitsOf(network, mean=..., std=...)"
        raise InputError(f"model: returned {got} for {len(x)} image, {expected}; {fix}")
