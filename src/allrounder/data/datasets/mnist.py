"""MNIST and Fashion-MNIST, in the idx files of their authors."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.fields import Place, value
from allrounder.data.base import Data, DataSpec, named
from allrounder.data.files.cache import absent, folder_of
from allrounder.data.files.catalog import IDX, spellings

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
RAW = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
"""The folders in which other tools keep the files."""
BYTES = 0x08
"""What an idx file calls numbers of one byte."""
MOST_BYTES = 2**31


@final
@value
class Mnist(DataSpec):
    """MNIST: 60,000 training and 10,000 test images of digits, 28x28, from its four idx files."""

    folder: Place = None
    """Where the files are, packed (.gz) or not; by default in the cache."""

    def load(self) -> Data:
        """Read the four files whole and check them."""
        return _load("mnist", self.folder, DIGITS)


@final
@value
class FashionMnist(DataSpec):
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28, from its four idx files."""

    folder: Place = None
    """Where the files are, packed (.gz) or not; by default in the cache."""

    def load(self) -> Data:
        """Read the four files whole and check them."""
        return _load("fashion-mnist", self.folder, CLOTHES)


def _load(kind: str, folder: str | None, classes: tuple[str, ...]) -> Data:
    where = folder_of(kind, folder)
    x_train, y_train, x_test, y_test = (
        read_idx(_find(kind, where, name), sides) for name, sides in zip(IDX, (3, 1, 3, 1), strict=True)
    )
    with named(f"{where}:"):
        return Data.of(kind, x_train, y_train, x_test, y_test, classes, layout="nhw")


def _find(kind: str, folder: Path, name: str) -> Path:
    places = [folder / spelling for spelling in spellings(name, RAW[kind])]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise absent(kind, folder, [name])
    return found


def read_idx(path: Path, sides: int) -> NDArray[np.uint8]:
    """An array of bytes with so many dimensions from an idx file, packed by gzip or not."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            head = file.read(4 + 4 * sides)
            if len(head) != 4 + 4 * sides or head[:4] != bytes((0, 0, BYTES, sides)):
                raise ValueError(
                    f"{path}: begins with {head[:4].hex() or 'nothing'}, expected 0000{BYTES:02x}{sides:02x} "
                    f"as an idx file of bytes with {sides} dimensions does; get it again"
                )
            shape = struct.unpack(f">{sides}I", head[4:])
            size = math.prod(shape)
            content = file.read(min(size, MOST_BYTES) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: cut short or damaged ({error}); get it again") from None
    if len(content) != size:
        got = f"{len(content)} bytes" if len(content) < size else "more bytes"
        raise ValueError(f"{path}: holds {got}, expected {size} for shape {shape}; get it again")
    return np.frombuffer(content, np.uint8).reshape(shape)
