"""The table of augmentations: a new one is one file here and one line below."""

from __future__ import annotations

from allrounder.data.augment.base import Augment, ImageAugment, NoAugment
from allrounder.data.augment.chain import Chain
from allrounder.data.augment.colour import ColourJitter, Cutout
from allrounder.data.augment.mixing import CutMix, Mixup
from allrounder.data.augment.moving import CropFlip, ResizedCrop

AUGMENTS: dict[str, type[Augment]] = {
    "crop-flip": CropFlip,
    "resized-crop": ResizedCrop,
    "cutout": Cutout,
    "colour-jitter": ColourJitter,
    "mixup": Mixup,
    "cutmix": CutMix,
    "chain": Chain,
    "none": NoAugment,
}

__all__ = [
    "AUGMENTS",
    "Augment",
    "Chain",
    "ColourJitter",
    "CropFlip",
    "CutMix",
    "Cutout",
    "ImageAugment",
    "Mixup",
    "NoAugment",
    "ResizedCrop",
]
