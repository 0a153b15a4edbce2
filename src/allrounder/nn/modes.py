"""Context managers that restore a network's modes, buffers and gradient flags."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserve_mode(model: nn.Module) -> Generator[None]:
    """Restore every module's training or evaluation mode on exit, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def eval_mode(model: object) -> Generator[None]:
    """Put a module into evaluation mode, and restore it on exit; a function has no modes."""
    if not isinstance(model, nn.Module):
        yield
        return
    with preserve_mode(model):
        model.eval()
        yield


@contextmanager
def preserve_buffers(model: nn.Module) -> Generator[None]:
    """Restore every buffer's values on exit, also after an error, and also if a buffer was replaced."""
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
def no_param_grads(model: nn.Module) -> Generator[None]:
    """Set requires_grad to False for all parameters; restore every flag on exit, also after an error."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
