"""Temporary copies of traced networks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch import fx


@contextmanager
def discard(*networks: fx.GraphModule) -> Generator[None]:
    """Free the memory of traced networks at the end of the block; they cannot be used any more. A graph and
    its network refer to each other, so without this their tensors stay until Python looks for cycles."""
    try:
        yield
    finally:
        for network in networks:
            for module in list(network.modules()):
                vars(module).clear()
