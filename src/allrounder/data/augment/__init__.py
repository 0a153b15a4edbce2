"""Data augmentation: random changes of training batches, one line each in the table below."""

from __future__ import annotations

from allrounder.data.augment.base import Augment, Chain, NoAugment
from allrounder.data.augment.color import ColorJitter
from allrounder.data.augment.crop import CropFlip, ResizedCrop
from allrounder.data.augment.mixup import CutMix, Cutout, Mixup

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
