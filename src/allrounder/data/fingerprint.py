"""A fingerprint of the training images, so that a run is resumed with the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from allrounder.data.base import Split
from allrounder.errors import RunError

NUM_SAMPLED = 64
"""Images of a split that enter its digest, evenly spaced; all labels do."""


def fingerprint_data(split: Split, extra: Split | None = None) -> dict[str, Any]:
    """Describe the training images for a checkpoint: their number, and a digest of every split."""
    splits = [split] if extra is None else [split, extra]
    return {"images": sum(map(len, splits)), "data_digests": [_digest(split) for split in splits]}


def check_same_data(folder: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise RunError unless the fingerprint of a checkpoint is that of the images given to resume it."""
    if saved["images"] != current["images"]:
        raise RunError(
            f"{folder}: had {saved['images']} images to train on, now there are {current['images']}; "
            "resume with the same data"
        )
    if saved["data_digests"] != current["data_digests"]:
        raise RunError(
            f"{folder}: was trained on other images or labels than those given now, or in another order; "
            "resume with the same data"
        )


def _digest(split: Split) -> str:
    """Hash the labels and sampled images, rounded to 8 bits so that float rounding has no effect."""
    sample = torch.arange(0, len(split), -(-len(split) // NUM_SAMPLED))
    images = split.fetch(sample).mul(255).round().to(torch.uint8)
    header = f"{len(split)} {tuple(images.shape)} ".encode()
    return hashlib.sha256(header + split.labels.numpy().tobytes() + images.numpy().tobytes()).hexdigest()[:16]
