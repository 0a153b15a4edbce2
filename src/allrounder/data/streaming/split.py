"""A split whose images stay in their files and are decoded when they are fetched."""

from __future__ import annotations

from typing import cast, final

import numpy as np
import torch

from allrounder.data.streaming.decode import Reading
from allrounder.data.streaming.decoder_pool import Crew, Piece
from allrounder.data.streaming.file_index import Listing
from allrounder.errors import DataError
from allrounder.types import Images, Labels

FEW = 4
"""So many images are decoded here, where nobody said that they would be wanted."""
REMEMBERED = 4
"""Batches that are decoded ahead at most; of more, the oldest is given up."""


@final
class Streamed:
    """The images of a list of files. Bytes stay bytes until they are fetched.

    With a crew, its processes decode, and what is expected is decoded before it is asked for; the images are
    the same to the bit. A copy of a split that is sent to another process decodes there, without a crew.
    """

    def __init__(self, listing: Listing, reading: Reading, crew: Crew | None = None) -> None:
        self.listing, self.reading, self.crew = listing, reading, crew
        self._ahead: dict[tuple[int, ...], list[Piece]] = {}

    def __len__(self) -> int:
        return len(self.listing)

    @property
    def labels(self) -> Labels:
        """The labels that the folders gave."""
        return self.listing.labels

    def fetch(self, index: Labels) -> Images:
        """The images at these positions, decoded now unless that was done ahead."""
        rows = tuple(cast(list[int], index.tolist()))
        pixels = np.empty((len(rows), *self.reading.shape), dtype=np.uint8)
        if self._crew is None or (len(rows) <= FEW and rows not in self._ahead):
            for row, target in zip(rows, pixels, strict=True):
                target[...] = self._read(row)
        else:
            flat, start = pixels.reshape(-1), 0
            for piece in self._ahead.pop(rows, None) or self._ask(self._crew, rows):
                part = np.frombuffer(piece.result(), dtype=np.uint8)
                flat[start : start + len(part)] = part
                start += len(part)
        return torch.from_numpy(pixels).float().div_(255)

    def expect(self, index: Labels) -> None:
        """Have these images decoded while something else is done; they are likely to be fetched soon."""
        rows = tuple(cast(list[int], index.tolist()))
        if self._crew is None or rows in self._ahead:
            return
        while len(self._ahead) >= REMEMBERED:
            for piece in self._ahead.pop(next(iter(self._ahead))):
                piece.cancel()
        self._ahead[rows] = self._ask(self._crew, rows)

    @property
    def _crew(self) -> Crew | None:
        return self.crew if self.crew is not None and self.crew.here else None

    def _ask(self, crew: Crew, rows: tuple[int, ...]) -> list[Piece]:
        return crew.ask(self.reading, [self.listing.path(row) for row in rows])

    def _read(self, row: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        try:
            return self.reading.read(self.listing.path(row))
        except ValueError as error:
            raise DataError(str(error)) from None

    def __reduce__(self) -> tuple[type[Streamed], tuple[Listing, Reading]]:
        return Streamed, (self.listing, self.reading)
