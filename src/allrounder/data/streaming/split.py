"""A split whose images stay in their files and are decoded when they are fetched."""

from __future__ import annotations

from typing import cast, final

import numpy as np
import torch
from numpy.typing import NDArray

from allrounder.data.base import Data
from allrounder.data.streaming.decode import DecodeSpec
from allrounder.data.streaming.decoder_pool import DecodeFuture, DecoderPool, default_num_decoders
from allrounder.data.streaming.file_index import FileIndex
from allrounder.errors import DataError
from allrounder.report.summary import format_shape
from allrounder.types import Images, Labels

MAX_INLINE = 4
"""Up to this number of images that were not prefetched is decoded in this process."""
MAX_PREFETCHED = 4
"""Batches that are prefetched at most; then the oldest is dropped."""


@final
class LazySplit:
    """The images of a list of files, decoded on `fetch`, by the processes of a pool if there is one, ahead of
    time after `prefetch`; the pixels are the same. A copy that is sent to another process has no pool."""

    def __init__(self, files: FileIndex, spec: DecodeSpec, pool: DecoderPool | None = None) -> None:
        self.files = files
        self.labels = files.labels
        self.spec = spec
        self.pool = pool
        self._prefetched: dict[tuple[int, ...], list[DecodeFuture]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        shape = format_shape((self.spec.channels, self.spec.height, self.spec.width))
        return f"LazySplit({len(self)} images {shape} in {self.files.root})"

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions, decoded now unless they were prefetched."""
        rows = tuple(cast(list[int], index.tolist()))
        shape = (len(rows), self.spec.channels, self.spec.height, self.spec.width)
        pixels = np.empty(shape, dtype=np.uint8)
        if self._usable_pool is None or (len(rows) <= MAX_INLINE and rows not in self._prefetched):
            for row, target in zip(rows, pixels, strict=True):
                target[...] = self._decode(row)
        else:
            flat = pixels.reshape(-1)
            start = 0
            for future in self._prefetched.pop(rows, None) or self._submit(self._usable_pool, rows):
                part = np.frombuffer(future.result(), dtype=np.uint8)
                flat[start : start + len(part)] = part
                start += len(part)
        return torch.from_numpy(pixels).float().div_(255)

    def prefetch(self, index: Labels) -> None:
        """Start decoding the images at these positions in the pool, if there is one."""
        rows = tuple(cast(list[int], index.tolist()))
        if self._usable_pool is None or rows in self._prefetched:
            return
        while len(self._prefetched) >= MAX_PREFETCHED:
            for future in self._prefetched.pop(next(iter(self._prefetched))):
                future.cancel()
        self._prefetched[rows] = self._submit(self._usable_pool, rows)

    @property
    def _usable_pool(self) -> DecoderPool | None:
        return self.pool if self.pool is not None and self.pool.is_usable else None

    def _submit(self, pool: DecoderPool, rows: tuple[int, ...]) -> list[DecodeFuture]:
        return pool.submit(self.spec, [self.files.path(row) for row in rows])

    def _decode(self, row: int) -> NDArray[np.uint8]:
        try:
            return self.spec.decode(self.files.path(row))
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
