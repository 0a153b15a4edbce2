"""The packed image files beside the project: encoded images one after the other, in an .npz file.

`blob` holds the encoded images, `offsets` their boundaries, `shape` is (n, h, w, c) of all, `y` the labels.
An encoded image may be several images, stacked from top to bottom.
"""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from allrounder.data.base import Data
from allrounder.data.datasets.npz import load_test_arrays
from allrounder.data.streaming.decode import PIL_MODES


def read_shared(path: Path) -> Data:
    """The test images of a file, packed or plain."""
    with np.load(path, allow_pickle=False) as file:
        if "blob" not in file.files:
            return load_test_arrays(path)
        blob, offsets, shape = file["blob"].tobytes(), file["offsets"].tolist(), file["shape"].tolist()
        labels, classes = file["y"], file["classes"].tolist() if "classes" in file.files else None
    parts: list[np.ndarray] = []
    for start, end in pairwise(offsets):
        with Image.open(io.BytesIO(blob[start:end])) as image:
            parts.append(np.asarray(image.convert(PIL_MODES[shape[3]])).reshape(-1, *shape[1:]))
    images = np.concatenate(parts)
    assert images.shape == tuple(shape)
    return Data.from_test_arrays(path.stem, images, labels, classes, "nhwc")
