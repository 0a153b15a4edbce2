"""The division of work: learners among ranks, and the batches of a learner among the ranks that train it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from allrounder.distributed.sync_batchnorm import sync_batchnorm_
from allrounder.types import Batch


@final
@dataclass(frozen=True)
class Placement:
    """The ranks that train each learner, in learner order."""

    ranks: Mapping[str, tuple[int, ...]]

    def learners_on(self, rank: int) -> tuple[str, ...]:
        """The learners that a rank trains, alone or together with others."""
        return tuple(name for name, ranks in self.ranks.items() if rank in ranks)

    def leader(self, name: str) -> int:
        """The first rank of a learner, which sends its weights and state."""
        return self.ranks[name][0]

    def followers(self) -> frozenset[int]:
        """Ranks that share the batches of a learner but do not lead it."""
        return frozenset(rank for ranks in self.ranks.values() for rank in ranks[1:])

    def idle_ranks(self, size: int) -> tuple[int, ...]:
        """Ranks of a world of `size` that train nothing."""
        return tuple(rank for rank in range(size) if not self.learners_on(rank))


def assign_ranks(
    names: Sequence[str],
    size: int,
    cost: Mapping[str, int | float],
    unshardable: Collection[str] = (),
    max_ranks: int | None = None,
) -> Placement:
    """Give every learner one rank, and each spare rank to the learner with the most work per rank. With fewer
    ranks than learners, spread the learners so that every rank has about the same work. Learners named in
    `unshardable` cannot split a batch and get one rank; no learner gets more than `max_ranks`."""
    if size < len(names):
        return _pack(names, size, cost)
    counts, limit = dict.fromkeys(names, 1), size if max_ranks is None else max_ranks
    for _ in range(size - len(names)):
        growable = [name for name in names if name not in unshardable and counts[name] < limit]
        if not growable:
            break
        counts[max(growable, key=lambda name: cost[name] / counts[name])] += 1
    ranks: dict[str, tuple[int, ...]] = {}
    for name in names:
        first = sum(map(len, ranks.values()))
        ranks[name] = tuple(range(first, first + counts[name]))
    return Placement(ranks)


def _pack(names: Sequence[str], size: int, cost: Mapping[str, int | float]) -> Placement:
    """Greedy packing: the most expensive learner first, each on the rank with the least work so far."""
    work = [0.0] * size
    ranks: dict[str, tuple[int, ...]] = {}
    for name in sorted(names, key=lambda name: -cost[name]):
        rank = work.index(min(work))
        work[rank] += cost[name]
        ranks[name] = (rank,)
    return Placement({name: ranks[name] for name in names})


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
