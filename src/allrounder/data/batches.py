"""The batches of a training run in random order, each addressed by its epoch and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias, TypeVar, final

import torch
from torch import Tensor
from typing_extensions import override

from allrounder.data.base import Prefetchable, Split
from allrounder.data.splits import ConcatSplit
from allrounder.data.views import View, fetch_views, prefetch_views
from allrounder.errors import DataError
from allrounder.rng import Rng
from allrounder.types import Batch, Labels, PerExampleBool

PREFETCH_BATCHES = 2
"""Batches that a split is asked to prepare ahead of the current one."""
Key = TypeVar("Key", bound=Hashable)
DrawViews: TypeAlias = Callable[[int, int], Mapping[Key, View]]
"""A function from a step of the run, counted from 1, and a number of images to views of these images."""


class BatchSource(ABC):
    """The batches of a split, addressed by epoch and step, both from 1."""

    def __init__(self, split: Split, steps: int) -> None:
        self.split = split
        self.steps = steps
        """The number of batches in an epoch."""
        self._labels = split.labels

    def at(self, epoch: int, step: int) -> Batch:
        """Return the batch of a step, whatever the earlier calls; prefetch the next batches if possible."""
        return self.views_at(epoch, step, lambda t, count: {"": None})[""]

    def views_at(self, epoch: int, step: int, draw_views: DrawViews[Key]) -> dict[Key, Batch]:
        """Return the batch of a step in all its views; prefetch the views of the next batches if possible.
        Equal views share their images."""
        if epoch < 1 or not 1 <= step <= self.steps:
            expected = f"expected epoch from 1, step 1 to {self.steps}"
            raise ValueError(f"batch: got epoch {epoch}, step {step}; {expected}")
        t = (epoch - 1) * self.steps + step
        self._forget_orders(t)
        index = self._index(t)
        views = draw_views(t, len(index))
        different = list(dict.fromkeys(views.values()))
        images = dict(zip(different, fetch_views(self.split, index, different), strict=True))
        for later in range(t + 1, t + 1 + PREFETCH_BATCHES) if isinstance(self.split, Prefetchable) else ():
            rows = self._index(later)
            prefetch_views(self.split, rows, list(dict.fromkeys(draw_views(later, len(rows)).values())))
        y, extra = self._labels[index], self._is_extra(index)
        return {
            key: Batch(x=images[view], y=y, index=index, extra=extra, is_cropped=view is not None)
            for key, view in views.items()
        }

    @abstractmethod
    def _index(self, t: int) -> Tensor:
        """Return the positions of the images of step t of the run."""

    @abstractmethod
    def _forget_orders(self, t: int) -> None:
        """Forget the orders of images that step t and the prefetched ones do not need."""

    def _is_extra(self, index: Tensor) -> PerExampleBool | None:
        return None


@final
class Batches(BatchSource):
    """The batches of a split in random order.

    Every image occurs once per epoch, and the last batch may be smaller. If a single image is left over, it
    joins the batch before it, because batch-norm has no variance over one image.
    """

    def __init__(self, split: Split, batch_size: int, rng: Rng) -> None:
        if batch_size < 1 or len(split) < 1:
            raise DataError(
                f"batches: got batch size {batch_size} and {len(split)} images, expected at least 1 of each"
            )
        super().__init__(split, count_steps(len(split), batch_size))
        self.batch_size = batch_size
        self.rng = rng
        self._orders: dict[int, Tensor] = {}

    @override
    def _index(self, t: int) -> Tensor:
        epochs, number = divmod(t - 1, self.steps)
        epoch = epochs + 1
        if epoch not in self._orders:
            self._orders[epoch] = self.rng.fold_in("order", epoch).permutation(len(self.split))
        first = number * self.batch_size
        return self._orders[epoch][first : None if number + 1 == self.steps else first + self.batch_size]

    @override
    def _forget_orders(self, t: int) -> None:
        _keep_near(self._orders, (t - 1) // self.steps + 1)


def count_steps(images: int, batch_size: int) -> int:
    """Return the number of batches of an epoch, in which a single image that is left over has no batch."""
    full, rest = divmod(images, batch_size)
    return max(1, full + (rest > 1))


@final
class ExtraBatches(BatchSource):
    """Batches with a fixed number of extra images: the original images, then the extra ones.

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
        super().__init__(ConcatSplit(split, extra), count_steps(len(split), batch_size))
        self._original = _ShuffledPasses(len(split), original_per_batch, rng.fold_in("order"))
        self._extra = _ShuffledPasses(len(extra), extra_per_batch, rng.fold_in("extra order"))

    @override
    def _index(self, t: int) -> Tensor:
        return torch.cat([self._original.at(t), self._original.total + self._extra.at(t)])

    @override
    def _forget_orders(self, t: int) -> None:
        self._original.forget_orders(t)
        self._extra.forget_orders(t)

    @override
    def _is_extra(self, index: Tensor) -> PerExampleBool:
        return index >= self._original.total


@final
class OwnBatches(BatchSource):
    """The batches of a learner with its own images or batch size, one for every step of the run.

    The images at `rows` of a split are drawn in passes, every pass in its own random order. A pass ends when
    too few images are left for another batch, so no image occurs twice in a batch, and passes need not end
    with the epochs of the run, which have `steps` steps. The last `extra_per_batch` images of a batch are
    drawn in the same way from `extra`; in `Batch.index`, their positions follow those of the split.
    """

    def __init__(
        self,
        split: Split,
        rows: Labels,
        batch_size: int,
        steps: int,
        rng: Rng,
        extra: Split | None = None,
        extra_per_batch: int = 0,
    ) -> None:
        original = batch_size - extra_per_batch
        for count, total, kind in (
            (original, len(rows), ""),
            (extra_per_batch, 0 if extra is None else len(extra), "extra "),
        ):
            if count > total:
                expected = f"expected at most {total}, the number of its {kind}images"
                raise DataError(f"got {count}, {expected}; choose smaller batches, or more images")
        super().__init__(split if extra is None else ConcatSplit(split, extra), steps)
        self.rows = rows
        self.batch_size = batch_size
        self.extra_per_batch = extra_per_batch
        self._num_original = None if extra is None else len(split)
        self._original = _ShuffledPasses(len(rows), original, rng)
        self._extra: _ShuffledPasses | None = None
        if extra is not None and extra_per_batch:
            self._extra = _ShuffledPasses(len(extra), extra_per_batch, rng.fold_in("extra order"))

    @override
    def _index(self, t: int) -> Tensor:
        index = self.rows[self._original.at(t)]
        if self._extra is None or self._num_original is None:
            return index
        return torch.cat([index, self._num_original + self._extra.at(t)])

    @override
    def _forget_orders(self, t: int) -> None:
        self._original.forget_orders(t)
        if self._extra is not None:
            self._extra.forget_orders(t)

    @override
    def _is_extra(self, index: Tensor) -> PerExampleBool | None:
        return None if self._num_original is None else index >= self._num_original


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
            self._orders[number] = self.rng.fold_in(number).permutation(self.total)
        return self._orders[number][group * self.size : (group + 1) * self.size]

    def forget_orders(self, t: int) -> None:
        """Forget the orders that group `t` and the next ones do not need."""
        _keep_near(self._orders, (t - 1) // (self.total // self.size) + 1)


def _keep_near(orders: dict[int, Tensor], number: int) -> None:
    """Remove the orders of all passes but pass `number` and those that are prefetched."""
    for far in [key for key in orders if not number <= key <= number + PREFETCH_BATCHES]:
        del orders[far]
