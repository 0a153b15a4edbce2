"""Noise in the shape of a published dataset that is not here: enough to measure time and memory with."""

from __future__ import annotations

from typing import Final, final

import torch

from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.cifar import Cifar10, Cifar100
from allrounder.data.datasets.imagenet import ImageNet, TinyImageNet
from allrounder.data.datasets.mnist import FashionMnist, Mnist
from allrounder.data.datasets.svhn import Svhn
from allrounder.data.files.catalog import PUBLISHED
from allrounder.rng import Draws
from allrounder.types import Images, Labels

Shape = tuple[int, int, int]
KNOWN: dict[type[DataSpec], tuple[str, int, Shape]] = {
    Mnist: ("mnist", 10, (1, 28, 28)),
    FashionMnist: ("fashion-mnist", 10, (1, 28, 28)),
    Cifar10: ("cifar10", 10, (3, 32, 32)),
    Cifar100: ("cifar100", 100, (3, 32, 32)),
    Svhn: ("svhn", 10, (3, 32, 32)),
    TinyImageNet: ("tiny-imagenet", 200, (3, 64, 64)),
}
"""Name, classes and shape; how many images there are is known with their files."""
IMAGENET: Final = (1_281_167, 50_000)
DIFFERENT = 64
"""Images that are really drawn; the others repeat them."""


@final
class Noise:
    """A split of any length that takes the memory of a few images."""

    def __init__(self, count: int, classes: int, shape: Shape):
        """Classes take turns."""
        self.labels = torch.arange(count) % classes
        self.few = Draws(0).at("stand-in").uniform(torch.empty(min(count, DIFFERENT), *shape))

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, index: Labels) -> Images:
        """The images at these positions."""
        return self.few[index % len(self.few)]


def stand_in(spec: DataSpec) -> Data | None:
    """A dataset as large as the one that is meant, full of noise; None where its shape is not known."""
    if isinstance(spec, ImageNet):
        name, classes, shape, counts = "imagenet", 1000, (3, spec.size, spec.size), IMAGENET
    elif type(spec) in KNOWN:
        name, classes, shape = KNOWN[type(spec)]
        counts = PUBLISHED[name].images
        assert counts is not None, "a published dataset says how many images it has"
    else:
        return None
    train, test = (Noise(count, classes, shape) for count in counts)
    return Data(name, train, test, tuple(str(number) for number in range(classes)))
