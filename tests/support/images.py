"""Images for tests: photographs of CIFAR-10 if the shared data is available, and synthetic ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from allrounder.data import Embedded
from tests.support.paths import PROJECT

ROOT = PROJECT


@cache
def _head() -> NDArray[np.uint8] | None:
    places = (parent / "shared" / "data" / "cifar10_test_head.npz" for parent in ROOT.parents)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        return None
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["x"]


def photographs(count: int) -> NDArray[np.uint8]:
    """The first photographs of CIFAR-10's test set, (n, 32, 32, 3)."""
    head = _head()
    if head is None:
        pytest.skip("shared/data/cifar10_test_head.npz is not beside the project")
    return head[:count]


def clothes(count: int) -> NDArray[np.uint8]:
    """Images of the embedded data, (n, 28, 28, 1)."""
    x = Embedded().load().test.fetch(torch.arange(count))
    return (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def scenes(count: int, size: int = 32, channels: int = 3) -> NDArray[np.uint8]:
    """Smooth colours with sharp shapes, for tests that need no photograph."""
    rng = np.random.default_rng(0)
    i, j = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    images = np.empty((count, size, size, channels), np.uint8)
    for number in range(count):
        for channel in range(channels):
            a, b, c = rng.uniform(0.5, 3, 3)
            images[number, ..., channel] = 127 + 90 * np.sin(a * i / size * 3 + c) * np.cos(b * j / size * 3)
        top, left = rng.integers(0, size // 2, 2)
        images[number, top : top + size // 3, left : left + size // 3] = rng.integers(0, 256, channels)
    return images
