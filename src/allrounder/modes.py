"""Borrowing a network without changing how its owner finds it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(model: nn.Module) -> Generator[None]:
    """Put every module's training or evaluation mode back at the end, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
