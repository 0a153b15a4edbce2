"""Slow references of confusion matrices and of the expected calibration error: one image at a time."""

from __future__ import annotations


def confusion(label, predicted, classes):
    """Rows are classes of images, columns are predicted classes."""
    counts = [[0] * classes for _ in range(classes)]
    for true, guess in zip(label, predicted, strict=True):
        counts[true][guess] += 1
    return counts


def bins_of(correct, confidence, bins):
    """(mean confidence, accuracy, count) of every bin ((m - 1) / M, m / M] with images; 0 is in the first."""
    found = []
    for m in range(1, bins + 1):
        inside = [
            k for k, p in enumerate(confidence) if (m - 1) / bins < p <= m / bins or (m == 1 and p == 0)
        ]
        if inside:
            found.append(
                (
                    sum(confidence[k] for k in inside) / len(inside),
                    sum(1 for k in inside if correct[k]) / len(inside),
                    len(inside),
                )
            )
    return found


def expected_calibration_error(correct, confidence, bins):
    """The mean gap between confidence and accuracy, over images."""
    return sum(n * abs(acc - conf) for conf, acc, n in bins_of(correct, confidence, bins)) / len(correct)
