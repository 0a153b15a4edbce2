"""Calibration: whether a network that is confident with probability p is correct with probability p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from allrounder.errors import InputError
from allrounder.report.corruption_metrics import FloatArray

DEFAULT_BINS = 15
"""As in Guo et al., 2017."""


@final
@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: numbers of every bin of confidences that has images, by rising confidence."""

    confidence: FloatArray
    """The mean confidence of the images of a bin."""
    accuracy: FloatArray
    """The share of the images of a bin that are classified correctly."""
    count: NDArray[np.int64]
    """The number of images of a bin."""
    bins: int
    """The number of bins between 0 and 1, with and without images."""

    @property
    def ece(self) -> float:
        """The expected calibration error, in [0, 1]:
            ECE = sum over bins of (count / n) |accuracy - confidence|
        Guo et al., 2017, On calibration of modern neural networks.
        """
        gaps = np.abs(self.accuracy - self.confidence)
        return float((self.count * gaps).sum() / self.count.sum()) if self.count.size else float("nan")


def reliability(correct: NDArray[np.bool_], confidence: FloatArray, bins: int = DEFAULT_BINS) -> Reliability:
    """Group images into bins of equal width by their confidence, the probability of the predicted class.

    Bin m of M holds the confidences in ((m - 1) / M, m / M]; the first bin also holds 0.
    """
    if correct.shape != confidence.shape or correct.ndim != 1 or bins < 1:
        got = f"got {correct.shape} results, {confidence.shape} confidences and {bins} bins"
        raise InputError(f"reliability: {got}, expected one of each for every image, and 1 bin or more")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        got = f"got confidences from {confidence.min():.6g} to {confidence.max():.6g}"
        raise InputError(f"reliability: {got}, expected probabilities in [0, 1]; apply a softmax to logits")
    upper_edges = np.arange(1, bins + 1) / bins
    index = np.searchsorted(upper_edges, confidence, side="left")
    count = np.bincount(index, minlength=bins)
    filled = count > 0
    confidence_sum, correct_sum = (
        np.bincount(index, weights=weights.astype(np.float64), minlength=bins)[filled]
        for weights in (confidence, correct)
    )
    count = count[filled]
    return Reliability(confidence_sum / count, correct_sum / count, count, bins)
