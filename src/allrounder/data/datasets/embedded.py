"""The dataset inside the package: a small cut of Fashion-MNIST, so that all runs without a download."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.fields import value
from allrounder.data.base import Data, DataSpec

NAMES = ("x_train", "y_train", "x_test", "y_test", "classes")
SHA256 = "e78caa98e0ca248a23a9d062fe67bce13e872e3a399b16d519ff20a292ebb9e8"
"""The digest of the arrays of the cut; `scripts/make_embedded.py` prints it."""


@final
@value
class Embedded(DataSpec):
    """A cut of Fashion-MNIST inside the package: 4,000 training and 1,000 test images, 28x28, 10 classes.

    The first 400 training and 100 test images of every class, dealt in turn, so that the first 10 m images
    hold m of each class. Scores are not comparable with those of the full set.
    """

    def load(self) -> Data:
        """Read the cut and check its digest."""
        cut = read_cut(files("allrounder.data.datasets") / "embedded.npz")
        x_train, y_train, x_test, y_test, classes = (cut[name] for name in NAMES)
        return Data.of("embedded", x_train, y_train, x_test, y_test, classes.tolist(), layout="nhw")


def read_cut(asset: Traversable) -> dict[str, NDArray[Any]]:
    """The arrays of the cut, or an error if they are not the ones that were released."""
    # Every layer below (numpy, zipfile, zlib) has errors of its own for a damaged file.
    try:
        with asset.open("rb") as file, np.load(file, allow_pickle=False) as cut:
            arrays = {name: cut[name] for name in NAMES}
    except Exception as error:
        raise RuntimeError(f"{asset}: cannot be read ({error}); install allrounder again") from error
    got = digest(arrays)
    if got != SHA256:
        raise RuntimeError(f"{asset}: damaged (SHA-256 {got}, expected {SHA256}); install allrounder again")
    return arrays


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The SHA-256 of arrays: names, types, shapes and bytes, in the order of the names above."""
    total = hashlib.sha256()
    for name in NAMES:
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()
