"""Noise images in the number and shape of a published dataset, for plans and checks without its files."""

from __future__ import annotations

from typing import Final, final

import torch

from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.cifar import Cifar10, Cifar100
from allrounder.data.datasets.imagenet import ImageNet, TinyImageNet
from allrounder.data.datasets.mnist import FashionMnist, Mnist
from allrounder.data.datasets.svhn import Svhn
from allrounder.data.files.catalog import PUBLISHED
from allrounder.rng import Rng
from allrounder.types import Images, Labels

Shape = tuple[int, int, int]
DATASET_SHAPES: dict[type[DataSpec], tuple[str, int, Shape]] = {
    Mnist: ("mnist", 10, (1, 28, 28)),
    FashionMnist: ("fashion-mnist", 10, (1, 28, 28)),
    Cifar10: ("cifar10", 10, (3, 32, 32)),
    Cifar100: ("cifar100", 100, (3, 32, 32)),
    Svhn: ("svhn", 10, (3, 32, 32)),
    TinyImageNet: ("tiny-imagenet", 200, (3, 64, 64)),
}
"""Name, number of classes and image shape; `PUBLISHED` has the numbers of images."""
IMAGENET_COUNTS: Final = (1_281_167, 50_000)
NUM_DISTINCT = 64
"""Different images of a noise split; the others repeat them."""


@final
class NoiseSplit:
    """A split of any length that stores only a few noise images."""

    def __init__(self, count: int, classes: int, shape: Shape):
        """Image i has the label i modulo `classes`."""
        self.labels = torch.arange(count) % classes
        self.images = Rng(0).fold_in("stand-in").uniform(torch.empty(min(count, NUM_DISTINCT), *shape))

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, index: Labels) -> Images:
        """Return the images at these positions."""
        return self.images[index % len(self.images)]


def dataset_shape(spec: DataSpec) -> Shape | None:
    """Return the shape of the images of a published dataset, without reading them; None if it is unknown."""
    if isinstance(spec, ImageNet):
        return 3, spec.size, spec.size
    return DATASET_SHAPES[type(spec)][2] if type(spec) in DATASET_SHAPES else None


def synthetic_data(spec: DataSpec) -> Data | None:
    """Build noise data with the size and shape of a published dataset; None if its shape is unknown."""
    shape = dataset_shape(spec)
    if shape is None:
        return None
    if isinstance(spec, ImageNet):
        name, classes, counts = "imagenet", 1000, IMAGENET_COUNTS
    else:
        name, classes, _ = DATASET_SHAPES[type(spec)]
        counts = PUBLISHED[name].num_images
        assert counts is not None, "the catalogue has the number of images of every published dataset"
    train, test = (NoiseSplit(count, classes, shape) for count in counts)
    return Data(name, train, test, tuple(str(number) for number in range(classes)))
