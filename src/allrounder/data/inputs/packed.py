"""Files with test images alone: plain arrays, or images packed by an image format.

A packed file holds encoded images one after the other in `blob`, their boundaries in `offsets`, the `shape`
(n, h, w, c) of all, and labels `y`. One encoded image may be many, stacked from top to bottom.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from allrounder.data.base import Data, named
from allrounder.data.datasets.npz import class_names, read_arrays, recognise
from allrounder.data.streaming.decode import FORMATS, MODES

PLAIN = (("x_test", "y_test"), ("x", "y"))
PACKED = ("blob", "offsets", "shape", "y")


def read_test(path: Path) -> Data:
    """The test images of a file: `x_test` and `y_test`, or `x` and `y`, or packed ones; perhaps `classes`."""
    wanted = dict.fromkeys([*(name for pair in PLAIN for name in pair), *PACKED, "classes"])
    arrays, found = read_arrays(path, wanted)
    with named(f"{path}:"):
        names = class_names(arrays)
        for x, y in PLAIN:
            if x in arrays and y in arrays:
                return Data.of_test(path.stem, arrays[x], arrays[y], names, recognise(x, arrays[x]))
        if all(name in arrays for name in PACKED):
            return Data.of_test(path.stem, _unpack(arrays), arrays["y"], names, "nhwc")
        raise ValueError(
            f"no test images (it has: {', '.join(found)}), expected x_test and y_test, or x and y; "
            "save them under these names"
        )


def _unpack(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    shape, offsets = (cast(list[int], arrays[name].ravel().tolist()) for name in ("shape", "offsets"))
    blob = arrays["blob"].tobytes()
    if len(shape) != 4 or shape[3] not in MODES:
        raise ValueError(f"shape: got {shape}, expected [n, h, w, c] with 1 or 3 channels; pack it again")
    parts: list[NDArray[np.uint8]] = []
    for number, (start, end) in enumerate(pairwise(offsets)):
        # Pillow's decoders have errors of their own for damaged images.
        try:
            with Image.open(io.BytesIO(blob[start:end]), formats=FORMATS) as image:
                pixels = np.asarray(image.convert(MODES[shape[3]]), dtype=np.uint8)
            if pixels.shape[1] != shape[2]:
                raise ValueError(f"it is {pixels.shape[1]} wide, expected {shape[2]}")
            parts.append(pixels.reshape(-1, *shape[1:]))
        except Exception as error:
            raise ValueError(
                f"blob: image {number} cannot be decoded ({error}); get the file again"
            ) from None
    count = sum(map(len, parts))
    if count != shape[0]:
        raise ValueError(f"blob: holds {count} images, expected {shape[0]} as shape says; get the file again")
    return np.concatenate(parts)
