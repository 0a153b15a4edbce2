"""Make the embedded dataset from Fashion-MNIST: python scripts/make_embedded.py fashion_mnist.npz [OUT].

The given file has x_train, y_train, x_test and y_test in the official order. The first images of every class
are taken, in the order one of each class, then the next of each. Two runs write the same bytes.
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

from allrounder.data.datasets.embedded import EMBEDDED_ARRAYS, digest_arrays

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


def select_images(source: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the embedded dataset; training and test images come from the official training and test
    sets."""
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(CLASSES)}
    with np.load(source, allow_pickle=False) as full:
        for split, count in PER_CLASS.items():
            x, y = full[f"x_{split}"], full[f"y_{split}"]
            rows = np.stack([np.flatnonzero(y == k)[:count] for k in range(len(CLASSES))], axis=1).ravel()
            arrays[f"x_{split}"] = x[rows].astype(np.uint8)
            arrays[f"y_{split}"] = y[rows].astype(np.uint8)
    return arrays


def write_npz(arrays: dict[str, NDArray[Any]], out: Path) -> None:
    """Write an .npz file whose bytes only depend on the arrays, not on the time or the system."""
    with zipfile.ZipFile(out, "w") as archive:
        for name in EMBEDDED_ARRAYS:
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3
            member.external_attr = 0o644 << 16
            content = io.BytesIO()
            np.save(content, arrays[name], allow_pickle=False)
            archive.writestr(member, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main(source: Path, out: Path = ASSET) -> None:
    """Write the dataset and print its size and digests."""
    arrays = select_images(source)
    write_npz(arrays, out)
    content = out.read_bytes()
    if len(content) > LIMIT:
        raise SystemExit(f"{out}: {len(content):,} bytes, expected at most {LIMIT:,}")
    print(f"{out.name}: {len(content):,} bytes")
    print(f"file   SHA-256 {hashlib.sha256(content).hexdigest()}")
    print(f"arrays SHA-256 {digest_arrays(arrays)}")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(__doc__)
    main(*(Path(argument) for argument in sys.argv[1:]))
