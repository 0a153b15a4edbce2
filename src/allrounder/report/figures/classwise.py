"""Numbers by class: the names of classes, means over seeds, and which classes fit into a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.entry import Entry
from allrounder.report.outcome import Column, Outcome

MAX_CLASSES = 40
"""Classes that a chart shows."""


def class_names(entry: Entry) -> tuple[str, ...]:
    """The names of the classes of a row, or their numbers; all different."""
    names = [*entry.classes, *map(str, range(len(entry.classes), _count_classes(entry)))]
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({n})" for n, name in enumerate(names))


def _count_classes(entry: Entry) -> int:
    """The number of classes that a row has or predicts."""
    arrays = [
        array for outcome in entry.outcomes.values() for array in (outcome.label, *outcome.predicted.values())
    ]
    known = [int(outcome.facts.get("classes", 0)) for outcome in entry.outcomes.values()]
    return max([*known, *(int(array.max(initial=-1)) + 1 for array in arrays)])


def mean_over_seeds(entry: Entry, compute: Callable[[Outcome], FloatArray]) -> FloatArray:
    """The mean of an array over the outcomes of a row; NaN only where all of them are."""
    return _mean([compute(outcome) for outcome in entry.outcomes.values()])


def _mean(arrays: Sequence[FloatArray]) -> FloatArray:
    """The mean without NaN; unlike that of numpy, it does not warn where all numbers are NaN."""
    stacked = np.stack(arrays)
    with np.errstate(invalid="ignore"):
        return np.nansum(stacked, 0) / (~np.isnan(stacked)).sum(0)


def class_accuracies(entry: Entry, column: Column) -> FloatArray:
    """The accuracy of every class in percent, the mean over seeds; NaN for a class without images."""
    count = len(class_names(entry))

    def compute(outcome: Outcome) -> FloatArray:
        accuracies = 100 * outcome.per_class(*column)
        return np.concatenate([accuracies, np.full(count - len(accuracies), np.nan)])

    return mean_over_seeds(entry, compute)


def hardest_classes(accuracies: Sequence[FloatArray]) -> list[int]:
    """The numbers of the classes to show, in their order: all, or those of lowest mean accuracy."""
    order = np.argsort(_mean(accuracies), kind="stable")  # NaN is last
    return sorted(order[:MAX_CLASSES].tolist())
