"""Networks and data that are small enough for tests that train."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.models import MODELS, ModelSpec


class Tiny(nn.Module):
    """A convolution, batch-norm and a linear layer."""

    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)
        self.linear = nn.Linear(width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.bn(self.conv(x)).tanh().flatten(1))


class Unfoldable(Tiny):
    """The same network with control flow that depends on the images, so it cannot be traced or folded."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(x.sum() < 1e9) else x / 2)


class Broad(nn.Module):
    """A network with 128 channels, whose second convolution has a faster form for 8x8 images."""

    def __init__(self, classes: int = 3, width: int = 128) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_())).relu_()
        return self.linear(x.mean((2, 3)))


class Tally:
    """Counts of images in forward and backward passes, shared by copies of the network."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0

    def __deepcopy__(self, memo: object) -> Tally:
        return self


class Counting(Unfoldable):
    """A network that counts the images of every pass; it is never folded, so no pass is missed."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()

    def forward(self, x: Tensor) -> Tensor:
        logits, tally = super().forward(x), self.tally
        tally.forwards += len(x)
        if logits.requires_grad:

            def count(g: Tensor) -> None:
                tally.backwards += len(g)

            logits.register_hook(count)
        return logits


REDUCED: dict[str, dict[str, int]] = {"wrn": {"depth": 10, "widen": 2}}
"""Settings besides the width that make a model of the table small."""


def small_model(kind: str, width: int = 4) -> ModelSpec:
    """A small model of the table: with this width if it has that field, and with the fields in REDUCED."""
    cls: Any = MODELS[kind]
    has_width = any(field.name == "width" for field in fields(cls))
    return cls(**({"width": width} if has_width else {}), **REDUCED.get(kind, {}))


def tiny() -> nn.Module:
    return Tiny()


def unfoldable64() -> nn.Module:
    return Unfoldable().double()


def broad() -> nn.Module:
    return Broad()


def blobs(train: int = 60, test: int = 30, seed: int = 0) -> Data:
    """Return noisy 8x8 images of three classes, which differ by the position of a bright spot."""
    rng = np.random.default_rng(seed)
    n = train + test
    y = np.arange(n) % 3
    x = rng.uniform(0, 0.5, (n, 1, 8, 8)).astype(np.float32)
    for i, label in enumerate(y):
        x[i, 0, 2 * label : 2 * label + 3, 2:6] += 0.4
    return Data.from_arrays("blobs", x[:train].clip(0, 1), y[:train], x[train:].clip(0, 1), y[train:])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two state dicts have the same names and equal bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
