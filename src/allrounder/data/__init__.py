"""Datasets, augmentations and corruptions; the tables DATASETS and AUGMENTS list what recipes can use."""

from allrounder.data.augment import AUGMENTS
from allrounder.data.base import DataSpec
from allrounder.data.datasets.cifar import Cifar10, Cifar100
from allrounder.data.datasets.embedded import Embedded
from allrounder.data.datasets.folder import Folder
from allrounder.data.datasets.imagenet import ImageNet, TinyImageNet
from allrounder.data.datasets.mnist import FashionMnist, Mnist
from allrounder.data.datasets.npz import InMemory, Npz
from allrounder.data.datasets.svhn import Svhn

DATASETS: dict[str, type[DataSpec]] = {
    "embedded": Embedded,
    "folder": Folder,
    "imagenet": ImageNet,
    "tiny-imagenet": TinyImageNet,
    "npz": Npz,
    "python": InMemory,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "svhn": Svhn,
}

__all__ = [
    "AUGMENTS",
    "DATASETS",
    "Cifar10",
    "Cifar100",
    "Embedded",
    "FashionMnist",
    "Folder",
    "ImageNet",
    "InMemory",
    "Mnist",
    "Npz",
    "Svhn",
    "TinyImageNet",
]
