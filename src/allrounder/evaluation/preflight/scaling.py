"""Checks that the images have the range and normalisation that the network was trained on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from allrounder.evaluation.preflight.base import Case, Finding
from allrounder.report.outcome import wilson_interval
from allrounder.threats.threat import in_box

NORMALISATION_CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
    "Fashion-MNIST": ((0.2860,), (0.3530,)),
}
"""Means and standard deviations that networks are commonly trained with."""


def check_range(case: Case) -> Finding | None:
    """Find images outside [0, 1], or as dark as if they were divided by 255 twice."""
    low, high = float(case.x.min()), float(case.x.max())
    problem = f"the images lie in [{low:.4g}, {high:.4g}], expected [0, 1]"
    if not bool(in_box(case.x, 1e-6).all()):
        fix = "divide them by 255"
        if low < 0:
            fix = "they seem normalised: put the normalisation into the model as its first layer instead"
        return Finding("range", True, f"{problem}; {fix}")
    if high <= 1 / 255:
        return Finding("range", False, f"{problem}; they seem to be divided by 255 twice")
    return None


def check_accuracy(case: Case) -> Finding | None:
    """Find another scaling on which the network is much better, or an accuracy no better than guessing."""
    n, k = case.logits.shape
    natural = case.accuracy(case.logits)
    # Much better: the two intervals are disjoint, and it beats always predicting the most frequent label.
    threshold = max(wilson_interval(natural, n)[1], float(case.labels.bincount().max()) / n)
    if wilson_interval(1.0, n)[0] > threshold:
        tried = [
            (case.accuracy(case.forward(x)), description)
            for description, x in _candidate_scalings(case.images)
        ]
        best, description = max(tried, key=lambda pair: pair[0])
        if wilson_interval(best, n)[0] > threshold:
            comparison = f"{natural:.0%} of the images, and {best:.0%} of them {description}"
            return Finding("normalisation", True, f"the network is right about {comparison}")
    if n < 5 or natural > 1 / k + 0.05:
        return None
    problem = (
        f"the network is right about {natural:.0%} of {n} images, as guessing among {k} classes would be"
    )
    predicted = int((case.logits.argmax(1).bincount() > 0).sum())
    fix = f"it predicts {predicted} of its classes; labels, preprocessing or weights may be wrong"
    return Finding("accuracy", False, f"{problem}; {fix}")


def _candidate_scalings(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield scalings that may have been intended, common ones first, each with a description of what to
    do."""
    c = x.shape[1]
    pairs = {
        f"the constants of {name}": pair
        for name, pair in NORMALISATION_CONSTANTS.items()
        if len(pair[0]) == c
    }
    pairs["one half"] = (0.5,) * c, (0.5,) * c
    mean, std = (tuple(float(v) for v in t) for t in (x.mean((0, 2, 3)), x.std((0, 2, 3)).clamp_min(1e-6)))
    pairs["their own mean and deviation"] = mean, std
    for name, pair in pairs.items():
        m, s = (torch.tensor(numbers).to(x).view(-1, 1, 1) for numbers in pair)
        constants = f"{name} (mean {_join_numbers(pair[0])}; std {_join_numbers(pair[1])})"
        yield f"normalised with {constants}: put Normalise(mean, std) in front of the network", (x - m) / s
        yield f"with a normalisation undone by {constants}: it is applied twice, remove one", x * s + m
    yield "multiplied by 255: it expects 0 to 255, so multiply by 255 in its first layer", x * 255
    yield "divided by 255: divide them before", x / 255


def _join_numbers(numbers: tuple[float, ...]) -> str:
    """Return numbers with four digits, separated by commas."""
    return ", ".join(f"{number:.4g}" for number in numbers)
