"""One copy in memory of what the layers of a network have computed from its parameters, for all processes.

The transformed filters of fast convolutions take 300 MB for ResNet-18. Every process computes them, and the
first one writes them to a file. Then all processes use the file, which the system keeps in memory once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

MIN_BYTES = 1 << 20
"""Smaller tensors stay where they are."""
MAX_WAIT = 60.0
"""Seconds after which a process does not wait for the file any more, and keeps its own tensors."""
FILE, CLAIM = "computed", "computed.claim"


def map_computed_tensors_(network: nn.Module, folder: Path) -> None:
    """Replace the large computed tensors of a network by equal ones in a file in `folder`.

    All processes that use the folder must have the same network, which is checked; one that does not keeps
    its own tensors. They are attributes of layers, alone or in tuples, not parameters or buffers.
    """
    places = list(_find_places(network))
    tensors = [tensor for _, _, group in places for tensor in group]
    file = folder / FILE
    if not tensors:
        return
    if _claim(folder / CLAIM):
        _write(file, tensors)
    if not _appears(file) or file.stat().st_size != sum(tensor.nbytes for tensor in tensors):
        return
    mapped = _map(file, tensors)
    if all(torch.equal(a, b) for a, b in zip(tensors, mapped, strict=True)):
        remaining = iter(mapped)
        for layer, name, group in places:
            new = tuple(next(remaining) for _ in group)
            setattr(layer, name, new if isinstance(getattr(layer, name), tuple) else new[0])


def _find_places(network: nn.Module) -> Iterator[tuple[nn.Module, str, tuple[Tensor, ...]]]:
    """The layers and attributes that hold large computed tensors."""
    for layer in network.modules():
        for name, value in vars(layer).items():
            group = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
            if group and all(_is_large(item) for item in group):
                yield layer, name, group


def _is_large(item: object) -> bool:
    return isinstance(item, Tensor) and item.is_contiguous() and item.nbytes >= MIN_BYTES


def _claim(marker: Path) -> bool:
    """Whether this process is the first, which writes the file."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _write(file: Path, tensors: list[Tensor]) -> None:
    """Write all tensors, one after the other; a file that cannot be written is empty."""
    unfinished = file.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as opened:
            for tensor in tensors:
                tensor.detach().numpy().tofile(opened)
    except OSError:  # no space: every process keeps its own tensors
        os.close(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
    unfinished.rename(file)


def _appears(file: Path) -> bool:
    """Wait until there is such a file; the process that writes it may have been killed."""
    end = time.monotonic() + MAX_WAIT
    while not file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _map(file: Path, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors of the file, which is only read: a write would go to a copy of the page."""
    storage = torch.UntypedStorage.from_file(str(file), False, file.stat().st_size)
    mapped: list[Tensor] = []
    offset = 0
    for tensor in tensors:
        first = offset // tensor.element_size()
        empty: Any = torch.empty(0, dtype=tensor.dtype)
        mapped.append(empty.set_(storage, first, tensor.shape))
        offset += tensor.nbytes
    return mapped
