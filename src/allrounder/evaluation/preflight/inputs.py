"""Checks of the shape, dtype and range of images, labels and logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allrounder.evaluation.preflight.base import Case, Finding
from allrounder.types import device_and_dtype

PRECISE_DTYPES = (torch.float32, torch.float64)
"""Dtypes that can represent a small perturbation; half precision cannot."""


def check_shape(case: Case) -> Finding | None:
    """Find images that are not (n, c, h, w)."""
    shape = tuple(case.x.shape)
    problem = f"the images have shape {shape}, expected (n, channels, height, width)"
    if len(shape) != 4:
        fix = "add a dimension with x[None]" if len(shape) == 3 else "reshape them"
        return Finding("shape", True, f"{problem}; {fix}")
    if 0 in shape:
        return Finding("shape", True, f"{problem}, each at least 1; give at least one image")
    if shape[3] in (1, 3) and shape[1] > 4:
        fix = "the channels seem to come last: use x.permute(0, 3, 1, 2)"
        return Finding("shape", True, f"{problem}; {fix}")
    return None


def check_dtype(case: Case) -> Finding | None:
    """Find images that are not float32 or float64."""
    if case.x.dtype in PRECISE_DTYPES:
        return None
    fix = "use x.float()" if case.x.is_floating_point() else "use x.float() / 255"
    return Finding("dtype", True, f"the images are {case.x.dtype}, expected float32 or float64; {fix}")


def check_finite_images(case: Case) -> Finding | None:
    """Find NaN or infinity in the images."""
    bad = int((~case.x.isfinite()).sum())
    message = f"{bad} values of the images are NaN or infinite, expected [0, 1]; check how they are made"
    return Finding("finite", True, message) if bad else None


def check_labels(case: Case) -> Finding | None:
    """Find labels that are not one class per image."""
    x, y = case.x, case.y
    got = f"the labels are {y.dtype} of shape {tuple(y.shape)}"
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        fix = "use y.argmax(1)" if y.dim() == 2 else "give one class per image, such as y.long()"
        return Finding("labels", True, f"{got}, expected integers of shape {tuple(x.shape[:1])}; {fix}")
    if len(y) and int(y.min()) < 0:
        message = f"the smallest label is {int(y.min())}, expected 0 or more; drop images without a label"
        return Finding("labels", True, message)
    if len(y) and case.classes is not None and int(y.max()) >= case.classes:
        return Finding("labels", True, _label_range_message(y, case.classes))
    return None


def _label_range_message(y: Tensor, classes: int) -> str:
    """Return the message about labels that are too large for the number of classes."""
    low, high = int(y.min()), int(y.max())
    fix = "they seem to start at 1: use y - 1" if low > 0 and high == classes else "check both"
    return f"the labels go up to {high}, expected at most {classes - 1} with {classes} classes; {fix}"


def check_device_and_dtype(case: Case) -> Finding | None:
    """Find a network with another dtype or on another device than the images."""
    if not isinstance(case.model, nn.Module):
        return None
    device, dtype = device_and_dtype(case.model)
    if dtype not in PRECISE_DTYPES:
        problem = f"the network is {dtype}, too coarse for a small perturbation, expected float32 or float64"
        return Finding("dtype", True, f"{problem}; use model.float()")
    if (device, dtype) == (case.x.device, case.x.dtype):
        return None
    problem = f"the images are {case.x.dtype} on {case.x.device}, the network is {dtype} on {device}"
    kind = "dtype" if dtype != case.x.dtype else "device"
    return Finding(kind, False, f"{problem}; evaluation converts the images, other code must use x.to")


def check_logits(case: Case) -> Finding | None:
    """Find outputs that are not one row of logits per image."""
    n = len(case.images)
    logits = case.logits
    if logits.dim() != 2 or len(logits) != n or logits.shape[1] < 2 or not logits.is_floating_point():
        fix = "return what comes before any argmax or pooling over images"
        if logits.is_floating_point() and logits.numel() == n:
            fix = "if it has two classes and one score z, return torch.stack([-z, z], 1)"
        problem = f"the network returns {logits.dtype} of shape {tuple(logits.shape)}"
        return Finding("shape", True, f"{problem}, expected logits of shape ({n}, classes); {fix}")
    if logits.dtype not in PRECISE_DTYPES:
        problem = f"the logits are {logits.dtype}, so predictions are rounded, expected float32 or float64"
        return Finding("dtype", False, f"{problem}; evaluate the network without mixed precision")
    return None


def check_finite_logits(case: Case) -> Finding | None:
    """Find NaN or infinity in the logits."""
    bad = int((~case.logits.isfinite()).any(1).sum())
    problem = f"the logits of {bad} of {len(case.logits)} images hold NaN or infinity, expected finite logits"
    return Finding("finite", True, f"{problem}; check the weights") if bad else None


def check_classes(case: Case) -> Finding | None:
    """Find logits with fewer or more columns than classes."""
    k = case.logits.shape[1]
    if case.classes is not None and k != case.classes:
        problem = f"the network has {k} classes, expected {case.classes}"
        if k > case.classes:
            fix = f"predictions beyond the last class count as wrong: use logits[:, :{case.classes}]"
            return Finding("classes", False, f"{problem}; {fix}")
        return Finding("classes", True, f"{problem}; use the network that belongs to the data")
    return Finding("classes", True, _label_range_message(case.y, k)) if int(case.y.max()) >= k else None
