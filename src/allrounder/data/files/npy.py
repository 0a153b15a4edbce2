"""Open .npy files of others as memory maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from allrounder.config.text import shorten


def open_npy(file: Path) -> NDArray[Any]:
    """Open an array; nothing is read but its header, and nothing in it is executed. Raise ValueError if the
    file is damaged, OSError if it cannot be opened."""
    try:
        if file.exists() and not file.is_file():  # a pipe would wait forever
            raise ValueError("it is a folder, a pipe or a device")
        array = cast(object, np.load(file, mmap_mode="r", allow_pickle=False))
    except OSError:
        raise
    except Exception as error:  # numpy raises many types for a damaged header
        raise ValueError(shorten(f"{type(error).__name__}: {error}")) from None
    if not isinstance(array, np.ndarray):
        cast(Any, array).close()
        raise ValueError("it is an archive, expected one array")
    return cast(NDArray[Any], array)
