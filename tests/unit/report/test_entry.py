from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.entry import Entry
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import wilson_interval


def outcome(correct: int) -> Outcome:
    return Outcome(np.zeros(100, np.int64), {"natural": (np.arange(100) >= correct).astype(np.int64)})


def test_a_cell_is_the_mean_over_seeds_with_its_interval():
    cell = Entry("a", {0: outcome(40), 1: outcome(60)}).cell(("natural", None))
    assert cell is not None and (cell.accuracies, cell.mean) == ((0.4, 0.6), 0.5)
    cell = Entry("a", {0: outcome(40)}).cell(("natural", None))
    assert cell is not None and cell.interval == pytest.approx(wilson_interval(0.4, 100))


def test_what_was_not_measured_has_no_cell():
    assert Entry("a", {0: outcome(40)}).cell(("aa", "worst")) is None
    assert Entry("a").cell(("natural", None)) is None
