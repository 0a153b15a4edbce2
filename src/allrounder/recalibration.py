"""Batch-norm statistics belong to the weights that produced them: measure them anew for averaged weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.modes import modes_restored
from allrounder.types import Images


def recalibrate_(model: nn.Module, batches: Iterable[Images]) -> None:
    """Replace running statistics by their plain average over batches of natural images; nothing else
    moves."""
    layers = [
        layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
    momenta = [layer.momentum for layer in layers]
    counters = [None if n.num_batches_tracked is None else n.num_batches_tracked.clone() for n in layers]
    with modes_restored(model), torch.no_grad():
        model.eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = None  # cumulative average
        for x in batches:
            model(x)
    for layer, momentum, counter in zip(layers, momenta, counters, strict=True):
        layer.momentum = momentum
        if counter is not None and layer.num_batches_tracked is not None:
            layer.num_batches_tracked.copy_(counter)
