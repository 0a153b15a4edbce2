"""The corruptions of CIFAR-10-C: fifteen that papers average over, and four extra ones.

The constants are those of the published program for CIFAR, checked one by one; they are much milder than
those for ImageNet. Lengths in pixels are meant for 32x32 images and are not scaled for other sizes, except
those of elastic_transform, pixelate and fog. So results at other sizes are comparable only with each other.
Reference: Hendrycks and Dietterich, 2019, Benchmarking neural network robustness to common corruptions and
perturbations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allrounder.data.corruptions.base import SEVERITIES, Corruption, Uint8Array, check_name, rng_per_image
from allrounder.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from allrounder.data.corruptions.digital import (
    brightness,
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from allrounder.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from allrounder.data.corruptions.spatter import spatter
from allrounder.data.corruptions.weather import fog, frost, snow
from allrounder.errors import InputError
from allrounder.rng import Rng

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(shot_noise, (500.0, 250.0, 100.0, 75.0, 50.0)),
    "impulse_noise": Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": Corruption(motion_blur, ((6.0, 1.0), (6.0, 1.5), (6.0, 2.0), (8.0, 2.0), (9.0, 2.5))),
    "zoom_blur": Corruption(zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": Corruption(
        snow,
        (
            (0.1, 0.2, 1.0, 0.6, 8.0, 3.0, 0.95),
            (0.1, 0.2, 1.0, 0.5, 10.0, 4.0, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10.0, 4.0, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12.0, 6.0, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14.0, 12.0, 0.8),
        ),
    ),
    "frost": Corruption(frost, ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Corruption(
        elastic_transform,
        ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption(jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": Corruption(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "spatter": Corruption(
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1.0, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": Corruption(saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))),
}
"""The fifteen corruptions that papers average over, then the four that the authors intend for tuning."""


def corrupt(
    images: Uint8Array, corruption: str, severity: int, *, seed: int = 0, rows: Sequence[int] | None = None
) -> Uint8Array:
    """Return corrupted copies of uint8 images, (n, h, w, 1 or 3), at a severity of 1 to 5.

    `rows` are the positions of the images in their dataset, by default 0, 1, 2, ... With the same seed, the
    image of a row is always corrupted in the same way, whatever else is in the batch.
    """
    check_name("corruption", corruption, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise InputError(f"severity: got {severity}, expected 1 to 5; use the images themselves for none")
    rng = rng_per_image(Rng(seed).fold_in("corruption", corruption, severity), images, rows)
    if len(images) == 0:
        return images.copy()
    entry = CORRUPTIONS[corruption]
    return np.ascontiguousarray(entry.apply(images, entry.constants[severity - 1], rng))
