"""Batch-norm statistics measured again, for weights that did not produce them, such as averages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.nn.modes import preserve_mode


def recalibrate_(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by their plain average over batches of natural images.

    Like `torch.optim.swa_utils.update_bn`, but only batch-norm layers are in training mode, and
    `num_batches_tracked` keeps its value.
    """
    layers = [
        layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
    momenta = [layer.momentum for layer in layers]
    counters = [
        None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone() for layer in layers
    ]
    with preserve_mode(model), torch.no_grad():
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
