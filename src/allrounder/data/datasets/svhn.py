"""SVHN, cropped digits of house numbers, from the .mat files of its authors."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import PathField, frozen_config
from allrounder.config.text import shorten
from allrounder.data.base import Data, DataSpec, prefix_errors
from allrounder.data.datasets.mnist import DIGITS
from allrounder.data.files.cache import dataset_folder, missing_error
from allrounder.errors import DataError

FILES = ("train_32x32.mat", "test_32x32.mat")
MAX_BYTES = 2**30
"""Bytes of a .mat file, before and after decompression; the larger file has 225 MB."""
HEADER_BYTES = 128
COMPRESSED = 15
"""The type of a compressed element of a .mat file."""
CHUNK_BYTES = 2**20
MAX_ELEMENTS = 100
"""Elements of a .mat file; those of SVHN have two."""


@final
@frozen_config
class Svhn(DataSpec):
    """SVHN: 73,257 training and 26,032 test images of digits, 32x32 in colour, from its .mat files.

    The digit 0, labelled 10 in the files, is class 0. Needs scipy: pip install "allrounder[ood]".
    """

    folder: PathField = None
    """The folder with the two files; by default in the cache."""

    @override
    def load(self) -> Data:
        root = dataset_folder("svhn", self.folder)
        missing = [name for name in FILES if not (root / name).is_file()]
        if missing:
            raise missing_error("svhn", root, missing)
        train, test = (read_mat(root / name) for name in FILES)
        with prefix_errors(f"{root}:"):
            return Data.from_arrays("svhn", *train, *test, DIGITS)


def _check_size(path: Path) -> None:
    """Raise ValueError if the elements of a .mat file would take more than MAX_BYTES.

    They are decompressed once to count their bytes, which are not kept: scipy reads what the file asks for.
    """
    too_large = f"more than {MAX_BYTES} bytes, expected those of SVHN"
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(too_large)
    count = elements = 0
    with path.open("rb") as file:
        order = "<" if file.read(HEADER_BYTES).endswith(b"IM") else ">"
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}2I", tag)
            end = file.tell() + size
            elements += 1
            if elements > MAX_ELEMENTS:
                raise ValueError(f"more than {MAX_ELEMENTS} elements, expected X and y")
            inflater = zlib.decompressobj()
            while kind == COMPRESSED and not inflater.eof and file.tell() < end:
                chunk = file.read(min(CHUNK_BYTES, end - file.tell()))
                if not chunk:
                    return
                while chunk and not inflater.eof:
                    count += len(inflater.decompress(chunk, CHUNK_BYTES))
                    if count > MAX_BYTES:
                        raise ValueError(too_large)
                    chunk = inflater.unconsumed_tail
            file.seek(end)


def read_mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images (n, c, h, w) and digits of a file."""
    try:
        from scipy.io import loadmat  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise DataError(
            f'{path}: scipy is needed to read it ({error}); install it with: pip install "allrounder[ood]"'
        ) from error
    with prefix_errors(f"{path}:"):
        # scipy and zlib raise different errors for a damaged file.
        try:
            _check_size(path)
            content = cast(dict[str, object], loadmat(path, variable_names=("X", "y")))
        except Exception as error:
            raise DataError(f"cut short or damaged ({shorten(str(error))}); get it again") from error
        x, y = (content.get(name) for name in ("X", "y"))
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
            raise DataError("has no X or no y, expected images X and digits y; get it again")
        x, y = cast(NDArray[Any], x), cast(NDArray[Any], y)
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
            got = f"holds X of shape {x.shape} and type {x.dtype}, y of shape {y.shape}"
            raise DataError(f"{got}, expected bytes (h, w, 3, n) and n digits; get it again")
        digits = y.ravel().astype(np.int64)
        if len(digits) and not (digits.min() >= 0 and digits.max() <= 10):
            got = f"holds digits from {digits.min()} to {digits.max()}"
            raise DataError(f"{got}, expected 1 to 10; get it again")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(digits == 10, 0, digits)
