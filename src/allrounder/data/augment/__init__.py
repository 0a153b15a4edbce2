"""Data augmentation: random changes of training batches, one line each in the table below."""

from __future__ import annotations

from allrounder.data.augment.base import Augment, ImageAugment, NoAugment
from allrounder.data.augment.color import ColorJitter, Cutout
from allrounder.data.augment.compose import Chain
from allrounder.data.augment.crop import CropFlip, ResizedCrop
from allrounder.data.augment.mixup import CutMix, Mixup

AUGMENTS: dict[str, type[Augment]] = {
    "crop-flip": CropFlip,
    "resized-crop": ResizedCrop,
    "cutout": Cutout,
    "color-jitter": ColorJitter,
    "mixup": Mixup,
    "cutmix": CutMix,
    "chain": Chain,
    "none": NoAugment,
}

__all__ = [
    "AUGMENTS",
    "Augment",
    "Chain",
    "ColorJitter",
    "CropFlip",
    "CutMix",
    "Cutout",
    "ImageAugment",
    "Mixup",
    "NoAugment",
    "ResizedCrop",
]
