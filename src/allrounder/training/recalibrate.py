"""Measure the batch-norm statistics of averaged weights on training images."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import torch
from torch import Tensor, nn

from allrounder.data.base import Split
from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.state import clone, copy_, weights_of
from allrounder.rng import Rng
from allrounder.types import Images, Weights, device_and_dtype

NUM_IMAGES = 2048


def recalibrate(
    weights: Mapping[str, Tensor],
    network: nn.Module,
    split: Split,
    rng: Rng,
    batch_size: int,
    num_images: int = NUM_IMAGES,
    heartbeat: Callable[[], None] = lambda: None,
) -> Weights:
    """A copy of the weights whose batch-norm statistics come from up to `num_images` images of a split.

    The weights of `network` are overwritten. `heartbeat` is called for every batch.
    """
    copy_(weights_of(network), weights)
    device, dtype = device_and_dtype(network)

    def batches() -> Generator[Tensor]:
        for x in sample_batches(split, num_images, rng, batch_size):
            heartbeat()
            yield x.to(device, dtype)

    recalibrate_(network, batches())
    return clone(weights_of(network))


def sample_batches(split: Split, num_images: int, rng: Rng, batch_size: int) -> Generator[Images]:
    """Batches of up to `num_images` random images of a split; the same images for the same `rng`.

    A last batch of one image is left out: batch-norm cannot compute a variance from it.
    """
    for rows in torch.split(rng.permutation(len(split))[:num_images], batch_size):
        if len(rows) > 1 or len(split) == 1:
            yield split.fetch(rows)
