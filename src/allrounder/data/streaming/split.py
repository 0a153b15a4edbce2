"""A split whose images stay in their files and are decoded when they are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from allrounder.data.base import Data
from allrounder.data.streaming.decode import Crops, DecodeSpec
from allrounder.data.streaming.decoder_pool import DecodeFuture, DecoderPool, default_num_decoders
from allrounder.data.streaming.file_index import FileIndex
from allrounder.errors import DataError
from allrounder.system.summary import format_shape
from allrounder.types import Images, Labels

MAX_INLINE = 4
"""Up to this number of images that were not prefetched is decoded in this process."""
MAX_PREFETCHED = 4
"""Batches that are prefetched at most; then the oldest is dropped."""


Views: TypeAlias = Sequence[Crops | None]
Request: TypeAlias = tuple[tuple[int, ...], tuple[Crops | None, ...]]
"""Positions of images, and what is seen of each of them."""


@final
class LazySplit:
    """The images of a list of files, decoded on `fetch`, by the processes of a pool if there is one, ahead of
    time after `prefetch`; the pixels are the same. A copy that is sent to another process has no pool.

    `fetch_views` decodes every file once and returns several views of it: random crops of the whole image,
    and for None what `fetch` returns.
    """

    def __init__(self, files: FileIndex, spec: DecodeSpec, pool: DecoderPool | None = None) -> None:
        self.files = files
        self.labels = files.labels
        self.spec = spec
        self.pool = pool
        self._prefetched: dict[Request, list[DecodeFuture]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        shape = format_shape((self.spec.channels, self.spec.height, self.spec.width))
        return f"LazySplit({len(self)} images {shape} in {self.files.root})"

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions, decoded now unless they were prefetched."""
        return self.fetch_views(index, (None,))[0]

    def prefetch(self, index: Labels) -> None:
        """Start decoding the images at these positions in the pool, if there is one."""
        self.prefetch_views(index, (None,))

    def fetch_views(self, index: Labels, views: Views) -> list[Tensor]:
        """Return views of the images at these positions, decoded now unless they were prefetched."""
        request = rows, _ = tuple(cast(list[int], index.tolist())), tuple(views)
        shapes = [self._shape(view) for view in views]
        pixels = np.empty((len(rows), sum(map(prod, shapes))), dtype=np.uint8)
        if self._usable_pool is None or (len(rows) <= MAX_INLINE and request not in self._prefetched):
            for number, row in enumerate(rows):
                pixels[number] = np.concatenate([view.ravel() for view in self._decode(row, views, number)])
        else:
            flat = pixels.reshape(-1)
            start = 0
            for future in self._prefetched.pop(request, None) or self._submit(self._usable_pool, request):
                part = np.frombuffer(future.result(), dtype=np.uint8)
                flat[start : start + len(part)] = part
                start += len(part)
        columns = np.split(pixels, np.cumsum([prod(shape) for shape in shapes])[:-1], axis=1)
        return [
            torch.from_numpy(column.reshape(len(rows), *shape)).float().div_(255)
            for column, shape in zip(columns, shapes, strict=True)
        ]

    def prefetch_views(self, index: Labels, views: Views) -> None:
        """Start decoding views of the images at these positions in the pool, if there is one."""
        request = tuple(cast(list[int], index.tolist())), tuple(views)
        if self._usable_pool is None or request in self._prefetched:
            return
        while len(self._prefetched) >= MAX_PREFETCHED:
            for future in self._prefetched.pop(next(iter(self._prefetched))):
                future.cancel()
        self._prefetched[request] = self._submit(self._usable_pool, request)

    @property
    def _usable_pool(self) -> DecoderPool | None:
        return self.pool if self.pool is not None and self.pool.is_usable else None

    def _shape(self, view: Crops | None) -> tuple[int, int, int]:
        target = self.spec if view is None else view
        return self.spec.channels, target.height, target.width

    def _submit(self, pool: DecoderPool, request: Request) -> list[DecodeFuture]:
        rows, views = request
        return pool.submit(self.spec, [self.files.path(row) for row in rows], views)

    def _decode(self, row: int, views: Views, number: int) -> list[NDArray[np.uint8]]:
        try:
            return self.spec.decode_views(self.files.path(row), views, number)
        except ValueError as error:
            raise DataError(str(error)) from None

    def __reduce__(self) -> tuple[type[LazySplit], tuple[FileIndex, DecodeSpec]]:
        return LazySplit, (self.files, self.spec)


def lazy_data(
    name: str,
    classes: tuple[str, ...],
    train: FileIndex | None,
    test: FileIndex,
    spec: DecodeSpec,
    workers: int | None,
) -> Data:
    """Build a dataset of image files, with one pool of decoder processes for both splits. Without training
    images, `train` is the test split. `workers`: 0 for no pool, None for the default number of processes."""
    num_workers = default_num_decoders() if workers is None else workers
    pool = DecoderPool(num_workers) if num_workers else None
    test_split = LazySplit(test, spec, pool)
    train_split = test_split if train is None else LazySplit(train, spec, pool)
    return Data(name, train_split, test_split, classes)
