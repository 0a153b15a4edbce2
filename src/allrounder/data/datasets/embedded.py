"""The dataset inside the package: a small part of Fashion-MNIST, so that nothing has to be downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import frozen_config
from allrounder.data.base import Data, DataSpec
from allrounder.errors import DataError

EMBEDDED_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "classes")
SHA256 = "e78caa98e0ca248a23a9d062fe67bce13e872e3a399b16d519ff20a292ebb9e8"
"""The digest of the arrays; `scripts/make_embedded.py` prints it."""


@final
@frozen_config
class Embedded(DataSpec):
    """A part of Fashion-MNIST inside the package: 4,000 training and 1,000 test images, 28x28, 10 classes.

    The first 400 training and 100 test images of every class, interleaved: the first 10 m images contain m
    of each class. Accuracies are not comparable with those on the full dataset.
    """

    @override
    def load(self) -> Data:
        arrays = read_embedded(files("allrounder.data.datasets") / "embedded.npz")
        *parts, classes = (arrays[name] for name in EMBEDDED_ARRAYS)
        return Data.from_arrays("embedded", *parts, classes=classes.tolist(), layout="nhw")


def read_embedded(asset: Traversable) -> dict[str, NDArray[Any]]:
    """Read the arrays; raise DataError unless they are the released ones."""
    # numpy, zipfile and zlib raise different errors for a damaged file.
    try:
        with asset.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in EMBEDDED_ARRAYS}
    except Exception as error:
        raise DataError(f"{asset}: cannot be read ({error}); install allrounder again") from error
    sha256 = digest_arrays(arrays)
    if sha256 != SHA256:
        raise DataError(f"{asset}: damaged (SHA-256 {sha256}, expected {SHA256}); install allrounder again")
    return arrays


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Compute the SHA-256 of the names, types, shapes and bytes of the arrays, in the order of the names."""
    digest = hashlib.sha256()
    for name in EMBEDDED_ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
