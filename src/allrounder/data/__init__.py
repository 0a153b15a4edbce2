from allrounder.data.augment import AUGMENTS
from allrounder.data.base import DataSpec
from allrounder.data.embedded import Embedded
from allrounder.data.folder import Folder
from allrounder.data.imagenet import ImageNet, TinyImageNet
from allrounder.data.npz import Given, Npz

DATASETS: dict[str, type[DataSpec]] = {
    "embedded": Embedded,
    "folder": Folder,
    "imagenet": ImageNet,
    "tiny-imagenet": TinyImageNet,
    "npz": Npz,
    "given": Given,
}

__all__ = ["AUGMENTS", "DATASETS", "Embedded", "Folder", "Given", "ImageNet", "Npz", "TinyImageNet"]
