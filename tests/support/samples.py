"""A few images of every dataset that the shipped recipes use, in the format of its authors.

They are real if the folder with real data is beside the project; otherwise random, of the same shape.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.support import formats
from tests.support.formats import Digits, Images
from tests.support.packed import read_shared
from tests.support.paths import PROJECT

ROOT = PROJECT
TRAIN, TEST = 30, 10
REAL = {
    "mnist": "mnist.npz",
    "fashion-mnist": "fashion_mnist.npz",
    "cifar10": "cifar10_test_head.npz",
    "cifar100": "cifar100_test.npz",
    "svhn": "svhn_test_5k.npz",
    "imagenet": "tinyimagenet20_val.npz",
}
"""Files of real images; those of Tiny-ImageNet stand in for ImageNet."""
SHAPE = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "imagenet": (3, 64, 64)}
CLASSES = {"cifar100": 100, "imagenet": 4}
Pair = tuple[Images, Digits]


def pairs(kind: str) -> tuple[Pair, Pair]:
    """Training and test images (n, c, h, w) with their labels."""
    shared = formats.shared_data_folder(ROOT)
    if shared is None:
        x, y = formats.random_images(TRAIN + TEST, SHAPE.get(kind, (3, 32, 32)), CLASSES.get(kind, 10))
    else:
        real = read_shared(shared / REAL[kind]).test
        # The images may be sorted by class, so take the first of every class in turn.
        order = [torch.nonzero(real.labels == label)[:TEST, 0] for label in range(CLASSES.get(kind, 10))]
        rows = torch.stack(order, dim=1).flatten()[: TRAIN + TEST]
        x = (real.fetch(rows) * 255).round().byte().numpy()
        y = real.labels[rows].numpy()
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])


def write(kind: str, folder: Path) -> None:
    """Write the files of a small version of a dataset."""
    train, test = pairs(kind)
    match kind:
        case "mnist" | "fashion-mnist":
            formats.write_idx(folder, (train[0][:, 0], train[1]), (test[0][:, 0], test[1]))
        case "cifar10":
            formats.write_tar(folder / "cifar-10-binary.tar.gz", formats.cifar10_binary(train, test))
        case "cifar100":
            parts = ((*train, train[1] // 5), (*test, test[1] // 5))
            formats.write_tar(folder / "cifar-100-binary.tar.gz", formats.cifar100_binary(*parts))
        case "svhn":
            formats.write_svhn(folder, train, test)
        case _:
            _write_folders(folder, {"train": train, "val": test})


def _write_folders(folder: Path, parts: dict[str, Pair]) -> None:
    """Write a folder of JPEG files for every class, with ids as names, as ImageNet has."""
    for part, (x, y) in parts.items():
        for number, (pixels, label) in enumerate(zip(x, y, strict=True)):
            path = folder / part / f"n{label:08d}" / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(path, quality=95)
