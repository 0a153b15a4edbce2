"""Custom data: an .npz file of plain arrays, or data passed from Python."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.fields import frozen_config
from allrounder.config.text import MAX_LINE, shorten
from allrounder.data.base import Data, DataSpec, Layout, prefix_errors
from allrounder.errors import DataError, MissingDataError, RecipeError
from allrounder.system.memory import total_memory

Arrays: TypeAlias = dict[str, NDArray[Any]]
REQUIRED_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
TEST_ARRAYS = (("x_test", "y_test"), ("x", "y"))
"""Accepted names of images and labels in a file of test images only."""

MAX_HEADER_BYTES = 10_000
"""Bytes of the header of an array; numpy parses no longer ones."""


@final
@frozen_config
class Npz(DataSpec):
    """Your own images from an .npz file with x_train, y_train, x_test, y_test and, optionally, classes.

    Images are uint8, or floats in [0, 1]; labels are whole numbers from 0. `numpy.savez` writes such a file.
    """

    path: str
    """The file; relative to the working directory."""
    layout: Literal["auto", "nchw", "nhwc", "nhw"] = "auto"
    """The order of the image dimensions; auto detects it from 1 or 3 channels, or none."""

    @override
    def load(self) -> Data:
        path = Path(self.path).expanduser()
        arrays, available = read_arrays(path, (*REQUIRED_ARRAYS, "classes"))
        missing = [name for name in REQUIRED_ARRAYS if name not in arrays]
        if missing:
            has = shorten(", ".join(available), MAX_LINE)
            raise DataError(f"{path}: no {', '.join(missing)} (it has: {has}); save it under that name")
        with prefix_errors(f"{path}:"):
            layout = detect_layout("x_train", arrays["x_train"]) if self.layout == "auto" else self.layout
            parts = (arrays[name] for name in REQUIRED_ARRAYS)
            return Data.from_arrays(path.stem, *parts, classes=get_class_names(arrays), layout=layout)


@final
@frozen_config
class InMemory(DataSpec):
    """Data passed from Python; the recipe stores its name only."""

    name: str
    """The name of the data."""

    def load(self) -> Data:
        """Raise RecipeError: the recipe stores the name, not the images."""
        raise RecipeError(
            f'data: given from Python as "{self.name}", so the recipe does not hold it; '
            "give it again, also to resume: train(recipe, out, data=...)"
        )


def load_test_arrays(path: Path) -> Data:
    """Read a file of test images only: x_test and y_test, or x and y, and optionally classes."""
    arrays, (x, y) = read_first_pair(path, TEST_ARRAYS)
    with prefix_errors(f"{path}:"):
        layout = detect_layout(x, arrays[x])
        return Data.from_test_arrays(path.stem, arrays[x], arrays[y], get_class_names(arrays), layout)


def read_first_pair(path: Path, pairs: Sequence[tuple[str, str]]) -> tuple[Arrays, tuple[str, str]]:
    """Read the first pair of images and labels that a file has, and its classes; also return their names."""
    _, available = read_arrays(path, ())
    for pair in pairs:
        if set(pair) <= set(available):
            return read_arrays(path, (*pair, "classes"))[0], pair
    accepted = " or ".join(" and ".join(pair) for pair in pairs)
    has = shorten(", ".join(available), MAX_LINE)
    raise DataError(f"{path}: has the arrays {has}, expected {accepted}; save it with these names")


def read_arrays(path: Path, names: Iterable[str]) -> tuple[Arrays, list[str]]:
    """Read the named arrays that a file has; also return the names of all its arrays.

    The headers are read first, so that a file that would not fit into memory is refused before it is read.
    """
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file (looked from {Path.cwd()}); set path to an .npz file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not an .npz file, or one cut short; write it again with numpy.savez")
    arrays: Arrays = {}
    bytes_left = total_memory()
    name = "its list of arrays"
    # numpy, zipfile, zlib and lzma raise different errors for a damaged file.
    try:
        with np.load(path, allow_pickle=False) as file:
            available = list(file.files)
            for name in names:
                if name in available:
                    bytes_left -= _count_bytes(file.zip, name)
                    if bytes_left < 0:
                        raise ValueError("it does not fit into the memory of this machine")
                    arrays[name] = file[name]
    except Exception as error:
        raise DataError(
            f"{path}: {name} cannot be read ({shorten(str(error))}); save it again as plain numbers or texts"
        ) from error
    return arrays, available


def _count_bytes(file: zipfile.ZipFile, name: str) -> int:
    """Return the bytes of an array; raise ValueError unless its header agrees with its size in the file."""
    # Arrays that `numpy.savez` did not write may have names without the suffix.
    member = file.getinfo(f"{name}.npy" if f"{name}.npy" in file.namelist() else name)
    with file.open(member) as content:
        head = io.BytesIO(content.read(MAX_HEADER_BYTES))
    version = np.lib.format.read_magic(head)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"got version {version} of the format, expected plain arrays")
    shape, _, dtype = read_header(head)
    if dtype.hasobject:
        return 0  # numpy refuses to read it
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or dtype.itemsize == 0 or head.tell() + size != member.file_size:
        got = f"{shorten(str(shape))} of type {shorten(str(dtype))} in {member.file_size} bytes"
        raise ValueError(f"its header does not agree with its size: {got}")
    return size


def detect_layout(name: str, x: NDArray[Any]) -> Layout:
    """Detect the layout of an image array from its 1 or 3 channels, or from having none."""
    if x.ndim == 3:
        return "nhw"
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, -1))
    if first == last:
        raise DataError(
            f"{name}: the layout of shape {x.shape} is ambiguous or unknown; "
            'set layout to "nchw", "nhwc" or "nhw"'
        )
    return "nchw" if first else "nhwc"


def get_class_names(arrays: Arrays) -> list[str] | None:
    """The class names in the arrays of a file; None if it has none."""
    if "classes" not in arrays:
        return None
    classes = arrays["classes"]
    if classes.ndim != 1 or classes.dtype.kind != "U":
        raise DataError(f"classes: got {classes.dtype} of shape {classes.shape}, expected a list of texts")
    return cast(list[str], classes.tolist())
