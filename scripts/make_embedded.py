"""Make the embedded dataset from Fashion-MNIST: python scripts/make_embedded.py fashion_mnist.npz [OUT].

The file given holds x_train, y_train, x_test and y_test in the official order. The first images of every
class are taken and dealt in turn, one of each class. Two runs write the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allrounder.data.datasets.embedded import NAMES, digest

ASSET = Path(__file__).parents[1] / "src" / "allrounder" / "data" / "datasets" / "embedded.npz"
LIMIT = 3_000_000
PER_CLASS = {"train": 400, "test": 100}
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def cut(source: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the embedded dataset, training images from training images and test from test."""
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(CLASSES)}
    with np.load(source, allow_pickle=False) as full:
        for part, count in PER_CLASS.items():
            x, y = full[f"x_{part}"], full[f"y_{part}"]
            rows = np.stack([np.flatnonzero(y == k)[:count] for k in range(len(CLASSES))], axis=1).ravel()
            arrays[f"x_{part}"], arrays[f"y_{part}"] = x[rows].astype(np.uint8), y[rows].astype(np.uint8)
    return arrays


def write(arrays: dict[str, NDArray[Any]], out: Path) -> None:
    """Write an .npz file whose bytes depend on the arrays alone, not on the clock or the system."""
    with zipfile.ZipFile(out, "w") as archive:
        for name in NAMES:
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            content = io.BytesIO()
            np.save(content, arrays[name], allow_pickle=False)
            archive.writestr(member, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main(source: Path, out: Path = ASSET) -> None:
    """Write the dataset, and print its size and digests."""
    arrays = cut(source)
    write(arrays, out)
    content = out.read_bytes()
    if len(content) > LIMIT:
        raise SystemExit(f"{out}: {len(content):,} bytes, expected at most {LIMIT:,}")
    print(f"{out.name}: {len(content):,} bytes")
    print(f"file   SHA-256 {hashlib.sha256(content).hexdigest()}")
    print(f"arrays SHA-256 {digest(arrays)}")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(__doc__)
    main(*(Path(argument) for argument in sys.argv[1:]))
