"""Confusion matrices: which class a network predicts for the images of which class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allrounder.errors import InputError
from allrounder.report.corruption_metrics import FloatArray


def confusion(label: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count the images of every class (rows) by the class that is predicted (columns)."""
    if label.shape != predicted.shape or label.ndim != 1:
        got = f"got {label.shape} labels and {predicted.shape} predictions"
        raise InputError(f"confusion: {got}, expected one of each for every image")
    both = np.concatenate([label, predicted])
    if both.size and (both.min() < 0 or both.max() >= classes):
        got = f"got classes from {both.min()} to {both.max()}"
        raise InputError(f"confusion: {got}, expected 0 to {classes - 1}; give the number of classes")
    return np.bincount(label * classes + predicted, minlength=classes**2).reshape(classes, classes)


def confusion_percents(counts: NDArray[np.int64]) -> FloatArray:
    """Divide every row of a confusion matrix by its sum, in percent; NaN for a class without images."""
    with np.errstate(invalid="ignore"):
        return 100 * counts / counts.sum(axis=1, keepdims=True)
