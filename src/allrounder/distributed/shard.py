"""One rank's place among the ranks that train a learner together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from allrounder.distributed.sync_batchnorm import synchronise_
from allrounder.types import Batch


def _nobody_else(tensor: Tensor) -> None:
    """The sum over a group of one."""


@final
@dataclass(frozen=True)
class Seat:
    """One rank's place among the ranks of a learner: index 0 of 1 when it has the learner for itself."""

    index: int = 0
    count: int = 1
    sum_: Callable[[Tensor], None] = field(default=_nobody_else, compare=False, repr=False)
    """Replaces a tensor by its sum over the group."""
    whole: bool = False
    """Whether every rank of the group has all images."""

    def at(self, images: int) -> Seat:
        """The seat at a batch of so many images. Where some rank would have less than two, as in the last of
        an epoch, all have all of them, and their sums are means, so that the batch counts once."""
        if images >= 2 * self.count or self.count == 1:
            return self

        def mean_(tensor: Tensor) -> None:
            self.sum_(tensor)
            tensor /= self.count

        return replace(self, sum_=mean_, whole=True)

    def rows(self, images: int) -> range:
        """The images of a batch that are this rank's: a run of them, as long as that of others or one
        longer."""
        if self.whole:
            return range(images)
        return range(images * self.index // self.count, images * (self.index + 1) // self.count)

    def counts(self, images: int) -> int:
        """How many images of a batch this rank reports on; each is reported once."""
        return len(self.rows(images)) if self.index == 0 or not self.whole else 0

    def shard(self, batch: Batch) -> Batch:
        """This rank's part of a batch."""
        return batch if self.count == 1 else batch.part(self.rows(len(batch)))

    def mean_(self, model: nn.Module, share: float = 1.0) -> None:
        """Average a network's gradients over the group, each weighted by its rank's share of the batch;
        nothing to do in a group of one."""
        if self.count == 1:
            return
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for dtype in dict.fromkeys(g.dtype for g in found):
            some = [g for g in found if g.dtype == dtype]
            flat = torch.cat([g.reshape(-1) for g in some]).mul_(share)
            self.sum_(flat)
            for g, mean in zip(some, torch.split(flat, [g.numel() for g in some]), strict=True):
                g.copy_(mean.view(g.shape))

    def synchronise_(self, model: nn.Module) -> None:
        """Let batch-norm take its statistics over the whole batch; nothing to do in a group of one."""
        if self.count > 1:
            synchronise_(model, self.sum_)
