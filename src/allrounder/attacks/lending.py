"""Lending a network to an attack, and taking it back as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import get_args

from torch import Tensor, nn

from allrounder import folding
from allrounder.modes import modes_restored
from allrounder.precision import Cast
from allrounder.types import Classifier, NormLayers


@contextmanager
def lend(model: Classifier, x: Tensor, norm_layers: NormLayers) -> Generator[Classifier]:
    """The network to craft on, without parameter gradients; put back as it was when the attack ends or fails.

    eval lends a folded copy where one can be made (see `folding`), else the network in eval mode. train lends
    it in training mode, so its running statistics move; train_frozen does too, and restores every buffer
    after. A network in half precision is folded in float32, and lent in half. A function that is no nn.Module
    is lent as it is.
    """
    if norm_layers not in get_args(NormLayers):
        known = ", ".join(get_args(NormLayers))
        raise ValueError(f"norm_layers is {norm_layers!r}, expected one of: {known}")
    if not isinstance(model, nn.Module):
        if norm_layers != "eval":
            raise ValueError(f"norm_layers is {norm_layers!r}, expected eval: a plain function has no modes")
        yield model
        return
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    buffers = _buffers(model) if norm_layers == "train_frozen" else []
    with modes_restored(model):
        try:
            model.train(norm_layers != "eval")
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            yield (_folded(model, x) if norm_layers == "eval" else None) or model
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                buffer.copy_(before)


def _folded(model: nn.Module, x: Tensor) -> Classifier | None:
    folded = folding.frozen(model.network if isinstance(model, Cast) else model, x)
    return partial(model.through, folded) if folded is not None and isinstance(model, Cast) else folded


def _buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
    """Every buffer with its place and a copy, so that one that was replaced is found again too."""
    return [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
