"""Checks of images, labels and logits: shape, dtype, range and normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from allrounder.evaluation.preflight.base import Case, Finding, note, severe
from allrounder.models.normalisation import NORMALISATION_CONSTANTS
from allrounder.report.statistics import wilson_interval
from allrounder.threats.threat import in_box
from allrounder.types import device_and_dtype

PRECISE_DTYPES = (torch.float32, torch.float64)
"""Dtypes that can represent a small perturbation; half precision cannot."""


def check_shape(case: Case) -> Finding | None:
    """Find images that are not (n, c, h, w)."""
    shape = tuple(case.x.shape)
    problem = f"the images have shape {shape}, expected (n, channels, height, width)"
    if len(shape) != 4:
        fix = "add a dimension with x[None]" if len(shape) == 3 else "reshape them"
        return severe("shape", problem, fix)
    if 0 in shape:
        return severe("shape", f"{problem}, each at least 1", "give at least one image")
    if shape[3] in (1, 3) and shape[1] > 4:
        return severe("shape", problem, "the channels seem to come last: use x.permute(0, 3, 1, 2)")
    return None


def check_dtype(case: Case) -> Finding | None:
    """Find images that are not float32 or float64."""
    if case.x.dtype in PRECISE_DTYPES:
        return None
    fix = "use x.float()" if case.x.is_floating_point() else "use x.float() / 255"
    return severe("dtype", f"the images are {case.x.dtype}, expected float32 or float64", fix)


def check_finite_images(case: Case) -> Finding | None:
    """Find NaN or infinity in the images."""
    bad = int((~case.x.isfinite()).sum())
    problem = f"{bad} values of the images are NaN or infinite, expected [0, 1]"
    return severe("finite", problem, "check how they are made") if bad else None


def check_labels(case: Case) -> Finding | None:
    """Find labels that are not one class per image."""
    x, y = case.x, case.y
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        got = f"the labels are {y.dtype} of shape {tuple(y.shape)}"
        fix = "use y.argmax(1)" if y.dim() == 2 else "give one class per image, such as y.long()"
        return severe("labels", f"{got}, expected integers of shape {tuple(x.shape[:1])}", fix)
    if len(y) and int(y.min()) < 0:
        problem = f"the smallest label is {int(y.min())}, expected 0 or more"
        return severe("labels", problem, "drop images without a label")
    return _find_large_labels("labels", y, case.classes) if len(y) and case.classes is not None else None


def _find_large_labels(kind: str, y: Tensor, classes: int) -> Finding | None:
    low, high = int(y.min()), int(y.max())
    problem = f"the labels go up to {high}, expected at most {classes - 1} with {classes} classes"
    fix = "they seem to start at 1: use y - 1" if low > 0 and high == classes else "check both"
    return severe(kind, problem, fix) if high >= classes else None


def check_device_and_dtype(case: Case) -> Finding | None:
    """Find a network with another dtype or on another device than the images."""
    if not isinstance(case.model, nn.Module):
        return None
    device, dtype = device_and_dtype(case.model)
    if dtype not in PRECISE_DTYPES:
        problem = f"the network is {dtype}, too coarse for a small perturbation, expected float32 or float64"
        return severe("dtype", problem, "use model.float()")
    if (device, dtype) == (case.x.device, case.x.dtype):
        return None
    problem = f"the images are {case.x.dtype} on {case.x.device}, the network is {dtype} on {device}"
    kind = "dtype" if dtype != case.x.dtype else "device"
    return note(kind, problem, "evaluation converts the images, other code must use x.to")


def check_logits(case: Case) -> Finding | None:
    """Find outputs that are not one row of logits per image."""
    n, logits = len(case.images), case.logits
    if logits.dim() != 2 or len(logits) != n or logits.shape[1] < 2 or not logits.is_floating_point():
        fix = "return what comes before any argmax or pooling over images"
        if logits.is_floating_point() and logits.numel() == n:
            fix = "if it has two classes and one score z, return torch.stack([-z, z], 1)"
        problem = f"the network returns {logits.dtype} of shape {tuple(logits.shape)}"
        return severe("shape", f"{problem}, expected logits of shape ({n}, classes)", fix)
    if logits.dtype not in PRECISE_DTYPES:
        problem = f"the logits are {logits.dtype}, so predictions are rounded, expected float32 or float64"
        return note("dtype", problem, "evaluate the network without mixed precision")
    return None


def check_finite_logits(case: Case) -> Finding | None:
    """Find NaN or infinity in the logits."""
    bad = int((~case.logits.isfinite()).any(1).sum())
    problem = f"the logits of {bad} of {len(case.logits)} images hold NaN or infinity, expected finite logits"
    return severe("finite", problem, "check the weights") if bad else None


def check_classes(case: Case) -> Finding | None:
    """Find logits with fewer or more columns than classes."""
    k = case.logits.shape[1]
    if case.classes is None or k == case.classes:
        return _find_large_labels("classes", case.y, k)
    problem = f"the network has {k} classes, expected {case.classes}"
    if k > case.classes:
        fix = f"predictions beyond the last class count as wrong: use logits[:, :{case.classes}]"
        return note("classes", problem, fix)
    return severe("classes", problem, "use the network that belongs to the data")


def check_range(case: Case) -> Finding | None:
    """Find images outside [0, 1], or as dark as if they were divided by 255 twice."""
    low, high = float(case.x.min()), float(case.x.max())
    problem = f"the images lie in [{low:.4g}, {high:.4g}], expected [0, 1]"
    if not bool(in_box(case.x, 1e-6).all()):
        normalised = "they seem normalised: put the normalisation into the model as its first layer instead"
        return severe("range", problem, normalised if low < 0 else "divide them by 255")
    return note("range", problem, "they seem to be divided by 255 twice") if high <= 1 / 255 else None


def check_accuracy(case: Case) -> Finding | None:
    """Find another scaling on which the network is much better, or an accuracy no better than guessing."""
    n, k = case.logits.shape
    natural = case.accuracy(case.logits)
    # Much better: the two intervals are disjoint, and it beats always predicting the most frequent label.
    threshold = max(wilson_interval(natural, n)[1], float(case.labels.bincount().max()) / n)
    if wilson_interval(1.0, n)[0] > threshold:
        scalings = _candidate_scalings(case.images)
        measured = [(case.accuracy(case.forward(x)), description) for description, x in scalings]
        best, description = max(measured, key=lambda pair: pair[0])
        if wilson_interval(best, n)[0] > threshold:
            comparison = f"{natural:.0%} of the images, and {best:.0%} of them {description}"
            return Finding("normalisation", True, f"the network is right about {comparison}")
    if n < 5 or natural > 1 / k + 0.05:
        return None
    share = f"{natural:.0%} of {n} images, as guessing among {k} classes would be"
    predicted = int((case.logits.argmax(1).bincount() > 0).sum())
    fix = f"it predicts {predicted} of its classes; labels, preprocessing or weights may be wrong"
    return note("accuracy", f"the network is right about {share}", fix)


def _candidate_scalings(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Scalings that may have been intended, common ones first, each with a description of what to do."""
    c = x.shape[1]
    constants = {name: pair for name, pair in NORMALISATION_CONSTANTS.items() if len(pair[0]) == c}
    pairs = {f"the constants of {name}": pair for name, pair in constants.items()}
    pairs["one half"] = (0.5,) * c, (0.5,) * c
    mean, std = (tuple(float(v) for v in t) for t in (x.mean((0, 2, 3)), x.std((0, 2, 3)).clamp_min(1e-6)))
    pairs["their own mean and deviation"] = mean, std
    for name, pair in pairs.items():
        m, s = (torch.tensor(numbers).to(x).view(-1, 1, 1) for numbers in pair)
        means, stds = (", ".join(f"{number:.4g}" for number in numbers) for numbers in pair)
        by = f"{name} (mean {means}; std {stds})"
        yield f"normalised with {by}: put Normalise(mean, std) in front of the network", (x - m) / s
        yield f"with a normalisation undone by {by}: it is applied twice, remove one", x * s + m
    yield "multiplied by 255: it expects 0 to 255, so multiply by 255 in its first layer", x * 255
    yield "divided by 255: divide them before", x / 255
