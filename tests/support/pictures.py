"""Write folders of small images, from noise or from the part of Tiny-ImageNet beside the project."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.networks import blobs
from tests.support.paths import PROJECT

ROOT = PROJECT
SHARED = next((up / "shared" / "data" for up in ROOT.parents if (up / "shared" / "data").is_dir()), ROOT)


def noise(number: int, height: int = 6, width: int = 6, channels: int = 3) -> np.ndarray:
    """Random uint8 pixels (h, w, c), seeded by the number."""
    return np.random.default_rng(number).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.squeeze()).save(path)
    return path


def write_animals(root: Path, train: int = 3, test: int = 2, side: int = 6, split: str = "val") -> Path:
    """Write two classes of noise, b-dog and a-cat; image i, counted as they are written, is noise(i)."""
    count = itertools.count()
    for part, n in (("train", train), (split, test)):
        for name in ("b-dog", "a-cat"):
            for i in range(n):
                save(root / part / name / f"{i}.png", noise(next(count), side, side))
    return root


def write_blobs(root: Path) -> Path:
    """Write the blobs that tests train on; they are rounded to 8 bits, so not bit-for-bit the same."""
    data = blobs(48, 12)
    for part, split in (("train", data.train), ("val", data.test)):
        x = split.fetch(torch.arange(len(split))).mul(255).round().byte()
        for i, (image, label) in enumerate(zip(x, split.labels.tolist(), strict=True)):
            save(root / part / str(label) / f"{i:02}.png", image[0].numpy())
    return root


def write_tiny_imagenet(root: Path, each: int = 4, classes: int = 3) -> Path:
    """Write original files of Tiny-ImageNet in the folders in which it is published."""
    if not (SHARED / "tinyimagenet20_train.npz").is_file():
        pytest.skip("the part of Tiny-ImageNet is not in shared/data beside the project")
    words: dict[str, str] = {}
    for part in ("train", "val"):
        with np.load(SHARED / f"tinyimagenet20_{part}.npz", allow_pickle=False) as file:
            blob, ends, y = file["blob"].tobytes(), file["offsets"], file["y"]
            wnids, names = file["wnids"].tolist(), file["classes"].tolist()
        lines: list[str] = []
        for label in range(classes):
            words[wnids[label]] = f"{names[label]}, and more words"
            for i in np.flatnonzero(y == label)[:each]:
                name = f"{wnids[label]}_{i}.JPEG" if part == "train" else f"val_{i}.JPEG"
                folder = root / part / (f"{wnids[label]}/images" if part == "train" else "images")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(blob[ends[i] : ends[i + 1]])
                lines.append(f"{name}\t{wnids[label]}\t0\t32\t44\t62\n")
            if part == "train":
                (root / part / wnids[label] / f"{wnids[label]}_boxes.txt").write_text("".join(lines[-each:]))
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(words) + "\n")
    (root / "words.txt").write_text("".join(f"{wnid}\t{text}\n" for wnid, text in words.items()))
    return root
