"""By what the images of a training are known again when it is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from allrounder.data.base import Split
from allrounder.errors import RunError

SAMPLE = 64
"""Images that are looked at."""


def facts_of(split: Split, extra: Split | None = None) -> dict[str, Any]:
    """What a checkpoint tells of the images: how many there are, and digests of labels and some images."""
    both = [split] if extra is None else [split, extra]
    return {"images": sum(map(len, both)), "known_by": [_digest(one) for one in both]}


def check_same(folder: Path, had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise unless a run goes on with the images it had; checkpoints of old have no digests."""
    if had["images"] != now["images"]:
        told = f"had {had['images']} images to train on, now there are {now['images']}"
        raise RunError(f"{folder}: {told}; resume with the same data")
    if had.get("known_by", now["known_by"]) != now["known_by"]:
        told = "was trained on other images or labels than those given now, or in another order"
        raise RunError(f"{folder}: {told}; resume with the same data")


def _digest(split: Split) -> str:
    """Images count as the bytes that they would be stored in, so that no rounding matters."""
    some = torch.arange(0, len(split), -(-len(split) // SAMPLE))
    images = split.fetch(some).mul(255).round().to(torch.uint8)
    told = f"{len(split)} {tuple(images.shape)} ".encode()
    return hashlib.sha256(told + split.labels.numpy().tobytes() + images.numpy().tobytes()).hexdigest()[:16]
