"""The part of each batch that one rank takes when several ranks train a learner together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from allrounder.distributed.sync_batchnorm import sync_batchnorm_
from allrounder.types import Batch


def _sum_over_one(tensor: Tensor) -> None:
    """The sum over a group of one rank: leaves the tensor as it is."""


def change_flat_(tensors: Sequence[Tensor], change_: Callable[[Tensor], None]) -> None:
    """Concatenate the tensors of each dtype, change the values in place, and copy them back."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same_dtype])
        change_(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in same_dtype])
        for tensor, values in zip(same_dtype, parts, strict=True):
            tensor.copy_(values.view(tensor.shape))


@final
@dataclass(frozen=True)
class BatchShard:
    """Shard `index` of `num_shards` of a learner's batches; 0 of 1 if one rank trains the learner alone."""

    index: int = 0
    num_shards: int = 1
    sum_: Callable[[Tensor], None] = field(default=_sum_over_one, compare=False, repr=False)
    """Replaces a tensor by its sum over the group."""
    replicated: bool = False
    """Whether every rank of the group takes the whole batch."""

    def for_batch(self, images: int) -> BatchShard:
        """The shard for a batch of `images`. If it is too small to give every rank two images, as the last
        one of an epoch may be, each rank takes the whole batch and gradients are averaged instead of
        summed."""
        if images >= 2 * self.num_shards or self.num_shards == 1:
            return self

        def mean_(tensor: Tensor) -> None:
            self.sum_(tensor)
            tensor /= self.num_shards

        return replace(self, sum_=mean_, replicated=True)

    def indices(self, images: int) -> range:
        """The positions of this rank's images in a batch, contiguous; lengths differ by at most one."""
        if self.replicated:
            return range(images)
        return range(images * self.index // self.num_shards, images * (self.index + 1) // self.num_shards)

    def num_reported(self, images: int) -> int:
        """The number of images of a batch that this rank adds to the metrics; each image counts once."""
        return len(self.indices(images)) if self.index == 0 or not self.replicated else 0

    def select(self, batch: Batch) -> Batch:
        """This rank's images of a batch."""
        return batch if self.num_shards == 1 else batch.slice_rows(self.indices(len(batch)))

    def allreduce_grads_(self, model: nn.Module, share: float = 1.0) -> None:
        """Sum gradients over the group, each rank's weighted by `share`, its share of the batch; no-op for
        one."""
        if self.num_shards == 1:
            return
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        change_flat_(grads, lambda flat: self.sum_(flat.mul_(share)))

    def sync_batchnorm_(self, model: nn.Module) -> None:
        """Let batch-norm use the statistics of the whole batch. No-op in a group of one."""
        if self.num_shards > 1:
            sync_batchnorm_(model, self.sum_)
