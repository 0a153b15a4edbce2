"""The batches of a training run in random order, each addressed by its epoch and step."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from allrounder.data.base import Prefetchable, Split
from allrounder.data.splits import ConcatSplit
from allrounder.errors import DataError
from allrounder.rng import Rng
from allrounder.types import Batch

PREFETCH_BATCHES = 2
"""Batches that a split is asked to prepare ahead of the current one."""


@final
class Batches:
    """The batches of a split in random order, addressed by epoch and step, both from 1.

    Every image occurs once per epoch, and the last batch may be smaller. If a single image is left over, it
    joins the batch before it, because batch-norm has no variance over one image.
    """

    def __init__(self, split: Split, batch_size: int, rng: Rng) -> None:
        if batch_size < 1 or len(split) < 1:
            raise DataError(
                f"batches: got batch size {batch_size} and {len(split)} images, expected at least 1 of each"
            )
        self.split = split
        self.batch_size = batch_size
        self.rng = rng
        self._labels = split.labels
        self._orders: dict[int, Tensor] = {}

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(len(self.split), self.batch_size)
        return max(1, full + (rest > 1))

    def at(self, epoch: int, step: int) -> Batch:
        """Return the batch of a step, whatever the earlier calls; prefetch the next batches if possible."""
        _check_address(epoch, step, self.steps)
        index = self._index(epoch, step)
        batch = Batch(x=self.split.fetch(index), y=self._labels[index], index=index)
        if isinstance(self.split, Prefetchable):
            for later in range(step, step + PREFETCH_BATCHES):
                self.split.prefetch(self._index(epoch + later // self.steps, later % self.steps + 1))
        near = range(epoch, epoch + PREFETCH_BATCHES + 1)
        self._orders = {key: order for key, order in self._orders.items() if key in near}
        return batch

    def _index(self, epoch: int, step: int) -> Tensor:
        if epoch not in self._orders:
            self._orders[epoch] = self.rng.fold_in("order", epoch).permutation(len(self.split))
        first = (step - 1) * self.batch_size
        return self._orders[epoch][first : None if step == self.steps else first + self.batch_size]


@final
class ExtraBatches:
    """Batches with a fixed number of extra images, addressed by epoch and step, both from 1.

    Original and extra images are each drawn in passes, every pass in its own random order. A pass ends when
    too few images are left for another batch, so no image occurs twice in a batch. In `Batch.index`, the
    positions of extra images follow those of the original ones.
    """

    def __init__(self, split: Split, extra: Split, extra_per_batch: int, batch_size: int, rng: Rng) -> None:
        original_per_batch = batch_size - extra_per_batch
        counts = {"original": (split, original_per_batch), "extra": (extra, extra_per_batch)}
        for kind, (images, count) in counts.items():
            if not 1 <= count <= len(images):
                raise DataError(
                    f"a batch of {batch_size} takes {count} {kind} images, expected 1 to {len(images)}, the "
                    "number available; change batch_size or extra.share"
                )
        self.split = ConcatSplit(split, extra)
        self.steps = Batches(split, batch_size, rng).steps
        self._labels = self.split.labels
        self._original = _ShuffledPasses(len(split), original_per_batch, rng.fold_in("order"))
        self._extra = _ShuffledPasses(len(extra), extra_per_batch, rng.fold_in("extra order"))

    def at(self, epoch: int, step: int) -> Batch:
        """Return the batch of a step: the original images, then the extra ones; prefetch the next batches."""
        _check_address(epoch, step, self.steps)
        t = (epoch - 1) * self.steps + step
        index = self._index(t)
        is_extra = index >= self._original.total
        batch = Batch(x=self.split.fetch(index), y=self._labels[index], index=index, extra=is_extra)
        for later in range(t + 1, t + 1 + PREFETCH_BATCHES):
            self.split.prefetch(self._index(later))
        return batch

    def _index(self, t: int) -> Tensor:
        return torch.cat([self._original.at(t), self._original.total + self._extra.at(t)])


@final
class _ShuffledPasses:
    """Groups of `size` distinct positions out of `total`, reshuffled when too few are left for a group."""

    def __init__(self, total: int, size: int, rng: Rng) -> None:
        self.total = total
        self.size = size
        self.rng = rng
        self._orders: dict[int, Tensor] = {}

    def at(self, t: int) -> Tensor:
        """Return group `t`, from 1."""
        completed, group = divmod(t - 1, self.total // self.size)
        number = completed + 1
        if number not in self._orders:
            # Prefetching asks for later steps, so the orders of neighbouring passes are kept.
            near = range(number - PREFETCH_BATCHES, number + PREFETCH_BATCHES + 1)
            self._orders = {key: order for key, order in self._orders.items() if key in near}
            self._orders[number] = self.rng.fold_in(number).permutation(self.total)
        return self._orders[number][group * self.size : (group + 1) * self.size]


def _check_address(epoch: int, step: int, steps: int) -> None:
    if epoch < 1 or not 1 <= step <= steps:
        raise DataError(f"batch: got epoch {epoch}, step {step}; expected epoch from 1, step 1 to {steps}")
