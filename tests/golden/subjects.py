"""Small networks and images that golden cases work with; made of torch and numpy alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 5


class Small(nn.Module):
    """Two convolutions with batch-norm and a linear layer."""

    def __init__(self, channels: int = 1, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.linear = nn.Linear(width * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images of 12x12 pixels."""
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(F.relu(self.bn2(self.conv2(x))).flatten(1))


class Random(Small):
    """The same with dropout that is always on, so that every pass draws random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits that differ from call to call."""
        return super().forward(F.dropout(x, 0.1, training=True))


def make_images(count: int, channels: int = 1, size: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Make noisy images with a bright bar whose place is the class; labels come in turn."""
    draws = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = draws.uniform(0, 0.75, (count, channels, size, size)).astype(np.float32)
    thick = size // CLASSES
    for number, label in enumerate(labels):
        images[number, label % channels, label * thick : (label + 1) * thick, 1:-1] += 0.25
    return torch.from_numpy(images.clip(0, 1)), torch.from_numpy(labels)


def make_bytes(count: int, shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.uint8]:
    """Make smooth pictures with some noise: bytes of shape (count, height, width, channels)."""
    draws = np.random.default_rng(seed)
    height, width, channels = shape
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    waves = draws.uniform(2, 9, (count, 1, 1, channels, 2))
    smooth = 0.5 + 0.4 * np.sin(waves[..., 0] * rows[..., None]) * np.cos(waves[..., 1] * columns[..., None])
    noisy = smooth + draws.uniform(-0.1, 0.1, smooth.shape)
    return (noisy.clip(0, 1) * 255).round().astype(np.uint8)


@cache
@torch.enable_grad()
def _train_weights(channels: int, width: int) -> dict[str, Tensor]:
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)
    network = Small(channels, width)
    torch.set_rng_state(generator_state)
    x, y = make_images(60, channels, seed=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(7):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.state_dict()


def make_network(kind: type[Small] = Small, channels: int = 1, width: int = 8) -> Small:
    """Make a fresh network, with weights that get most images right, few of them by a wide margin."""
    network = kind(channels, width)
    network.load_state_dict(_train_weights(channels, width))
    return network.eval()
