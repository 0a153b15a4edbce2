"""Checks of image and label tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def check_images(x: Tensor) -> None:
    """Raise ValueError unless images are (n, c, h, w), uint8 or floats in [0, 1]."""
    if x.ndim != 4 or 0 in x.shape:
        hint = '; greyscale images without a channel are layout "nhw"' if x.ndim == 3 else ""
        raise ValueError(f"images: got shape {tuple(x.shape)}, expected (n, c, h, w), none of them 0{hint}")
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        raise ValueError(f"images: got {x.dtype}, expected uint8 or a floating type in [0, 1]; convert them")
    low, high = (float(end) for end in x.aminmax())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("images: got NaN or infinite pixels, expected finite ones in [0, 1]; fix them")
    if low < 0 or high > 1:
        hint = "undo any normalisation, which belongs to the network"
        if low >= 0 and high <= 255:
            hint = "divide by 255, or give uint8"
        raise ValueError(f"images: got pixels from {low:g} to {high:g}, expected [0, 1]; {hint}")


def check_labels(y: Tensor, num_images: int, num_classes: int) -> None:
    """Raise ValueError unless there is one class number for each image."""
    check_integer_labels(y)
    if y.ndim != 1:
        raise ValueError(f"labels: got shape {tuple(y.shape)}, expected (n,): one class for each image")
    if len(y) != num_images:
        raise ValueError(f"labels: got {len(y)} for {num_images} images, expected one for each image")
    low, high = (int(end) for end in y.long().aminmax())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels: got numbers from {low} to {high}, expected 0 to {num_classes - 1}; "
            "number the classes from 0, or name them all in classes"
        )


def check_integer_labels(y: Tensor) -> None:
    """Raise ValueError unless labels are whole numbers."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels: got {y.dtype}, expected whole numbers; convert them to int64")
