"""Borrowing a network without changing how its owner finds it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
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


@contextmanager
def buffers_restored(model: nn.Module) -> Generator[None]:
    """Put every buffer's content back at the end, also after an error, and also where one was replaced."""
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                buffer.copy_(before)


@contextmanager
def gradients_off(model: nn.Module) -> Generator[None]:
    """Let no parameter ask for a gradient, and put every flag back at the end, also after an error."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
