"""Data of your own: from a file of plain arrays, or handed over from Python."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.fields import value
from allrounder.data.base import Data, DataSpec, Layout, named
from allrounder.errors import RecipeError

NEEDED = ("x_train", "y_train", "x_test", "y_test")


@final
@value
class Npz(DataSpec):
    """Your own images from an .npz file with x_train, y_train, x_test, y_test and, if you like, classes.

    Images are bytes, or floats in [0, 1]; labels are whole numbers from 0. `numpy.savez` writes such a file.
    """

    path: str
    """The file; relative to the working directory."""
    layout: Literal["auto", "nchw", "nhwc", "nhw"] = "auto"
    """The order of the image dimensions; auto recognises 1 or 3 channels, or none."""

    def load(self) -> Data:
        """Read the file whole and check it."""
        path = Path(self.path).expanduser()
        arrays, found = read_arrays(path, (*NEEDED, "classes"))
        missing = [name for name in NEEDED if name not in arrays]
        if missing:
            raise ValueError(
                f"{path}: no {', '.join(missing)} (it has: {', '.join(found)}); save it under that name"
            )
        with named(f"{path}:"):
            layout = recognise("x_train", arrays["x_train"]) if self.layout == "auto" else self.layout
            parts = (arrays[name] for name in NEEDED)
            return Data.of(path.stem, *parts, classes=class_names(arrays), layout=layout)


@final
@value
class Given(DataSpec):
    """Images handed over from Python, known to the recipe by name only."""

    name: str
    """The name of the data that was handed over."""

    def load(self) -> Data:
        """Always an error: a recipe holds the name, not the images."""
        raise RecipeError(
            f'data: given from Python as "{self.name}", so the recipe does not hold it; '
            "give it again, also to resume: train(recipe, out, data=...)"
        )


def read_arrays(path: Path, names: Iterable[str]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Those of the named arrays that a file holds, and the names of all that it holds."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file (looked from {Path.cwd()}); set path to an .npz file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not an .npz file, or one cut short; write it again with numpy.savez")
    arrays: dict[str, NDArray[Any]] = {}
    name = "its list of arrays"
    # Every layer below (numpy, zipfile, zlib, lzma) has errors of its own for a damaged file.
    try:
        with np.load(path, allow_pickle=False) as file:
            found = list(file.files)
            for name in names:
                if name in found:
                    arrays[name] = file[name]
    except Exception as error:
        raise ValueError(
            f"{path}: {name} cannot be read ({error}); save plain numbers and texts again"
        ) from error
    return arrays, found


def recognise(name: str, x: NDArray[Any]) -> Layout:
    """The layout of an image array, by its 1 or 3 channels or by having none."""
    if x.ndim == 3:
        return "nhw"
    first, last = (x.ndim == 4 and x.shape[side] in (1, 3) for side in (1, -1))
    if first == last:
        raise ValueError(
            f"{name}: shape {x.shape} can be read in more than one way or in none; "
            'set layout to "nchw", "nhwc" or "nhw"'
        )
    return "nchw" if first else "nhwc"


def class_names(arrays: Mapping[str, NDArray[Any]]) -> list[str] | None:
    """The names of the classes, if the file has them."""
    if "classes" not in arrays:
        return None
    classes = arrays["classes"]
    if classes.ndim != 1 or classes.dtype.kind != "U":
        raise ValueError(f"classes: got {classes.dtype} of shape {classes.shape}, expected a list of texts")
    return cast(list[str], classes.tolist())
