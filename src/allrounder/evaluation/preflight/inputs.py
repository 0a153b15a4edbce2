"""Whether images, labels and answers have the form that everything else relies on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allrounder.evaluation.preflight.base import Case, Finding
from allrounder.types import device_of

PRECISE = (torch.float32, torch.float64)
"""Half precision cannot hold a small perturbation."""


def shape(case: Case) -> Finding | None:
    """Images that are not (n, c, h, w)."""
    shape = tuple(case.x.shape)
    said = f"the images have shape {shape}, expected (n, channels, height, width)"
    if len(shape) != 4:
        hint = "add a dimension with x[None]" if len(shape) == 3 else "reshape them"
        return Finding("shape", True, f"{said}; {hint}")
    if 0 in shape:
        return Finding("shape", True, f"{said} with nothing of size zero; give at least one image")
    if shape[3] in (1, 3) and shape[1] > 4:
        return Finding("shape", True, f"{said}; the channels seem to come last: use x.permute(0, 3, 1, 2)")
    return None


def dtype(case: Case) -> Finding | None:
    """Images that are not float32 or float64."""
    if case.x.dtype in PRECISE:
        return None
    fix = "use x.float()" if case.x.is_floating_point() else "use x.float() / 255"
    return Finding("dtype", True, f"the images are {case.x.dtype}, expected float32 or float64; {fix}")


def finite_images(case: Case) -> Finding | None:
    """NaN or infinity among the images."""
    bad = int((~case.x.isfinite()).sum())
    said = f"{bad} values of the images are NaN or infinite, expected [0, 1]; check how they are made"
    return Finding("finite", True, said) if bad else None


def labels(case: Case) -> Finding | None:
    """Labels that are not one class for every image."""
    x, y = case.x, case.y
    got = f"the labels are {y.dtype} of shape {tuple(y.shape)}"
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        hint = "use y.argmax(1)" if y.dim() == 2 else "give one class for every image, such as y.long()"
        return Finding("labels", True, f"{got}, expected integers of shape {tuple(x.shape[:1])}; {hint}")
    if len(y) and int(y.min()) < 0:
        said = f"the smallest label is {int(y.min())}, expected 0 or more; drop images without a label"
        return Finding("labels", True, said)
    if len(y) and case.classes is not None and int(y.max()) >= case.classes:
        return Finding("labels", True, _too_large(y, case.classes))
    return None


def _too_large(y: Tensor, classes: int) -> str:
    low, high = int(y.min()), int(y.max())
    fix = "they seem to start at 1: use y - 1" if low > 0 and high == classes else "check both"
    return f"the labels go up to {high}, expected at most {classes - 1} with {classes} classes; {fix}"


def place(case: Case) -> Finding | None:
    """A network of another type or on another device than the images."""
    if not isinstance(case.model, nn.Module):
        return None
    device, dtype = device_of(case.model)
    if dtype not in PRECISE:
        said = f"the network is {dtype}, which cannot hold a small perturbation, expected float32 or float64"
        return Finding("dtype", True, f"{said}; use model.float()")
    if (device, dtype) == (case.x.device, case.x.dtype):
        return None
    said = f"the images are {case.x.dtype} on {case.x.device}, the network is {dtype} on {device}"
    what = "dtype" if dtype != case.x.dtype else "device"
    return Finding(what, False, f"{said}; evaluation converts the images, other code must use x.to")


def forward(case: Case) -> Finding | None:
    """Answers that are not one row of logits for every image."""
    n, answer = len(case.images), case.logits
    if answer.dim() != 2 or len(answer) != n or answer.shape[1] < 2 or not answer.is_floating_point():
        fix = "return what comes before any argmax or pooling over images"
        if answer.is_floating_point() and answer.numel() == n:
            fix = "if it has two classes and one score z, return torch.stack([-z, z], 1)"
        said = f"the network returns {answer.dtype} of shape {tuple(answer.shape)}"
        return Finding("shape", True, f"{said}, expected logits of shape ({n}, classes); {fix}")
    if answer.dtype not in PRECISE:
        said = (
            f"the network answers in {answer.dtype}, so its verdicts are rounded, expected float32 or float64"
        )
        return Finding("dtype", False, f"{said}; evaluate it without mixed precision")
    return None


def finite_answers(case: Case) -> Finding | None:
    """NaN or infinity among the logits."""
    bad = int((~case.logits.isfinite()).any(1).sum())
    said = f"the answers to {bad} of {len(case.logits)} images hold NaN or infinity, expected finite logits"
    return Finding("finite", True, f"{said}; check the weights") if bad else None


def classes(case: Case) -> Finding | None:
    """Fewer or more columns of logits than classes."""
    k, high = case.logits.shape[1], int(case.y.max())
    if case.classes is not None and k != case.classes:
        said = f"the network has {k} classes, expected {case.classes}"
        if k > case.classes:
            said = f"{said}; answers beyond the last class count as wrong: use logits[:, :{case.classes}]"
            return Finding("classes", False, said)
        return Finding("classes", True, f"{said}; take the network that belongs to the data")
    return Finding("classes", True, _too_large(case.y, k)) if high >= k else None
