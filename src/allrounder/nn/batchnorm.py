"""Batch-norm statistics measured again, for weights that did not produce them, such as averages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.nn.modes import preserve_mode


def recalibrate_(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by their plain average over batches of images.

    Like `torch.optim.swa_utils.update_bn`, but only batch-norm layers are in training mode, and
    `num_batches_tracked` keeps its value.
    """
    # Layers that track statistics have a counter.
    layers = [(layer, cast(Tensor, layer.num_batches_tracked)) for layer in _tracking_layers(model)]
    before = [(layer.momentum, counter.clone()) for layer, counter in layers]
    with preserve_mode(model), torch.no_grad():
        model.eval()
        for layer, _ in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = None  # cumulative average
        for x in batches:
            model(x)
    for (layer, counter), (momentum, count) in zip(layers, before, strict=True):
        layer.momentum = momentum
        counter.copy_(count)


def tracks_statistics(model: nn.Module) -> bool:
    """Whether a network has running statistics, so that `recalibrate_` changes it."""
    return bool(_tracking_layers(model))


def _tracking_layers(model: nn.Module) -> list[_BatchNorm]:
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    return [layer for layer in norms if layer.track_running_stats]
