"""MNIST and Fashion-MNIST from the idx files of their authors."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import PathField, frozen_config
from allrounder.data.base import Data, DataSpec, prefix_errors
from allrounder.data.files.archives import check_no_padding
from allrounder.data.files.cache import dataset_folder, missing_error
from allrounder.data.files.catalog import IDX_FILES, idx_file_names
from allrounder.errors import DataError

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
IDX_UINT8 = 0x08
"""The type code of uint8 in an idx file."""
MAX_BYTES = 2**30
"""Bytes of an idx file after decompression; MNIST has 47 MB."""
CHUNK_BYTES = 2**20


@final
@frozen_config
class Mnist(DataSpec):
    """MNIST: 60,000 training and 10,000 test images of digits, 28x28, from its four idx files."""

    folder: PathField = None
    """The folder with the files, compressed (.gz) or not; by default in the cache."""

    @override
    def load(self) -> Data:
        return _load("mnist", self.folder, "MNIST", DIGITS)


@final
@frozen_config
class FashionMnist(DataSpec):
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28, from its four idx files."""

    folder: PathField = None
    """The folder with the files, compressed (.gz) or not; by default in the cache."""

    @override
    def load(self) -> Data:
        return _load("fashion-mnist", self.folder, "FashionMNIST", CLOTHES)


def _load(kind: str, folder: str | None, raw_folder: str, classes: tuple[str, ...]) -> Data:
    """Read the files, which may also be in the folder `raw_folder` of torchvision."""
    root = dataset_folder(kind, folder)
    arrays: list[NDArray[np.uint8]] = []
    for name in IDX_FILES:
        paths = [root / variant for variant in idx_file_names(name, raw_folder)]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise missing_error(kind, root, [name])
        arrays.append(read_idx(path, ndim=1 if "labels" in name else 3))
    with prefix_errors(f"{root}:"):
        return Data.from_arrays(kind, *arrays, classes=classes, layout="nhw")


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read an idx file of uint8 with `ndim` dimensions, compressed by gzip or not."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip:
        check_no_padding(path)
    start = bytes((0, 0, IDX_UINT8, ndim))
    with prefix_errors(f"{path}:"):
        try:
            with gzip.open(path) if is_gzip else path.open("rb") as file:
                head = file.read(4 + 4 * ndim)
                if len(head) != 4 + 4 * ndim or not head.startswith(start):
                    got = f"begins with {head[:4].hex() or 'nothing'}, expected {start.hex()}"
                    raise DataError(f"{got} of an idx file with {ndim} dimensions; get it again")
                shape = struct.unpack(f">{ndim}I", head[4:])
                size = math.prod(shape)
                if size > MAX_BYTES:
                    limit = f"expected at most {MAX_BYTES} bytes"
                    raise ValueError(f"has the shape {shape}, {limit}; get it again")
                content = _read_chunks(file, size + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"cut short or damaged ({error}); get it again") from None
        if len(content) != size:
            got = f"{len(content)} bytes" if len(content) < size else "more bytes"
            raise DataError(f"holds {got}, expected {size} for shape {shape}; get it again")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read_chunks(file: gzip.GzipFile | io.BufferedReader, size: int) -> bytes:
    """Read at most `size` bytes; memory grows with what the file has, whatever its header says."""
    content = io.BytesIO()
    while chunk := file.read(min(CHUNK_BYTES, size - content.tell())):
        content.write(chunk)
    return content.getvalue()
