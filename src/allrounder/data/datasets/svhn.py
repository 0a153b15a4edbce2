"""SVHN, cropped digits of house numbers, from the .mat files of its authors."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import PathField, frozen_config
from allrounder.config.text import shorten
from allrounder.data.base import Data, DataSpec, prefix_errors
from allrounder.data.datasets.mnist import DIGITS
from allrounder.data.files.cache import dataset_folder, missing_error
from allrounder.data.files.mat import read_mat_arrays
from allrounder.errors import DataError

FILES = ("train_32x32.mat", "test_32x32.mat")
MAX_BYTES = 2**30
"""Bytes of a .mat file: as it is, decompressed, and as arrays; the larger file has 225 MB."""


@final
@frozen_config
class Svhn(DataSpec):
    """SVHN: 73,257 training and 26,032 test images of digits, 32x32 in colour, from its .mat files.

    The digit 0, labelled 10 in the files, is class 0.
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


def read_mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images (n, c, h, w) and digits of a file."""
    with prefix_errors(f"{path}:"):
        try:
            content = read_mat_arrays(path, ("X", "y"), MAX_BYTES)
        except (ValueError, OSError) as error:
            raise DataError(f"cut short or damaged ({shorten(str(error))}); get it again") from error
        if set(content) != {"X", "y"}:
            raise DataError("has no X or no y, expected images X and digits y; get it again")
        x, y = content["X"], content["y"]
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
            got = f"holds X of shape {x.shape} and type {x.dtype}, y of shape {y.shape}"
            raise DataError(f"{got}, expected bytes (h, w, 3, n) and n digits; get it again")
        wrong = ~np.isin(y, np.arange(11))
        if wrong.any():
            raise DataError(f"holds the digit {y[wrong][0]:g}, expected 0 to 10; get it again")
        digits = y.ravel().astype(np.int64)
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(digits == 10, 0, digits)
