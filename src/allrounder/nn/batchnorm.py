"""Batch-norm statistics belong to the weights that produced them: measure them anew for averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.data.base import Split
from allrounder.nn.modes import modes_restored
from allrounder.nn.state import Weights, copy_, snapshot, weights_of
from allrounder.rng import Draws
from allrounder.types import Images, device_of

IMAGES = 2048


def recalibrated(
    weights: Mapping[str, Tensor],
    network: nn.Module,
    split: Split,
    draws: Draws,
    size: int,
    count: int = IMAGES,
    tick: Callable[[], None] = lambda: None,
) -> Weights:
    """The weights with statistics of their own, from up to `count` images of a split, the same every time.

    `network` is one whose weights may be overwritten; `tick` is called for every batch.
    """
    copy_(weights_of(network), weights)
    device, dtype = device_of(network)

    def batches() -> Generator[Tensor]:
        for x in some_images(split, count, draws, size):
            tick()
            yield x.to(device, dtype)

    recalibrate_(network, batches())
    return snapshot(weights_of(network))


def recalibrate_(model: nn.Module, batches: Iterable[Tensor]) -> None:
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


def some_images(split: Split, count: int, draws: Draws, size: int) -> Generator[Images]:
    """Batches of up to `count` images of a split, in an order drawn once.

    A last image that would be alone is left out, because batch-norm has no variance of one image.
    """
    for rows in torch.split(draws.permutation(len(split))[:count], size):
        if len(rows) > 1 or len(split) == 1:
            yield split.fetch(rows)
